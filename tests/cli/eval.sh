#!/bin/sh
# numoe eval: files that other programs can read, complete or not there at all.
. "$(dirname "$0")/lib.sh"

ids=$tmp/ids.json
npy=$tmp/out.npy
routes=$tmp/routes.json
echo '[0, 88, 83, 300, 306, 389, 462]' >"$ids"

# ---- logits: 7 tokens, 512 in the vocabulary
expect 0 '' "$numoe" eval -q -m "$fixture" --logits "$ids" -o "$npy" --routes "$routes"
test "$(head -c 6 "$npy" | tail -c 5)" = NUMPY || complain 'magic of the NPY file'
test "$(head -c 10 "$npy" | od -An -tu1 | tr -s ' ')" = ' 147 78 85 77 80 89 1 0 118 0' ||
    complain "head of the NPY file: $(head -c 10 "$npy" | od -An -tu1)"
test "$(head -c 128 "$npy" | tail -c +11 | sed 's/ *$//')" = \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 512), }" ||
    complain "description: $(head -c 128 "$npy" | tail -c +11)"
test "$(wc -c <"$npy")" -eq $((128 + 7 * 512 * 4)) || complain "size of the NPY file"
ls -A "$tmp" | grep -q '^\.' && complain "left over: $(ls -A "$tmp")"
mode=$(stat -c %a "$npy")
touch "$tmp/usual"
test "$mode" = "$(stat -c %a "$tmp/usual")" || complain "permissions $mode"

# The prompt is the beginning of the reference's: so are the logits.
reference=$src/tests/data/fixtures/deepseek3-a/logits_short.npy
start=$(($(wc -c <"$reference") - 53 * 512 * 4))
tail -c +$((start + 1)) "$reference" | head -c $((7 * 512 * 4)) | od -An -v -w4 -tf4 >"$tmp/expected"
tail -c +129 "$npy" | od -An -v -w4 -tf4 >"$tmp/got"
paste "$tmp/expected" "$tmp/got" |
    awk '{ d += ($1 - $2) ^ 2; n += $1 ^ 2; rows++ }
         END { exit !(rows == 7 * 512 && n > 0 && sqrt(d / n) < 1e-4) }' ||
    complain 'logits are not those of the reference'

# ---- routes: two MoE layers, 4 experts for each of 7 tokens
grep -q '"n_token": 7' "$routes" || complain "routes: $(head -c 200 "$routes")"
test "$(grep -c '"layer": [12],' "$routes")" -eq 2 || complain 'layers of the routes'
tr -d ' \n' <"$routes" | sed 's/"weights"/\n&/g; s/"ids"/\n&/g' >"$tmp/parts"
grep '"ids"' "$tmp/parts" | while read -r line; do
    test "$(echo "$line" | grep -o '[0-9][0-9]*' | wc -l)" -ge 28 || echo few
done | grep -q few && complain 'ids of the routes'

# ---- the same again gives the same bytes, over an older file
cp "$npy" "$tmp/first.npy"
echo old >"$npy"
expect 0 '' "$numoe" eval -q -m "$fixture" --logits "$ids" -o "$npy" --chunk 2 -t 1
same "$tmp/first.npy" "$npy" 'logits again'
"$numoe" eval -q -m "$fixture" --logits - -o "$npy" <"$ids" || complain 'ids from stdin'
same "$tmp/first.npy" "$npy" 'ids from stdin'

# ---- what was written is said
expect 0 '*' "$numoe" eval -m "$fixture" --logits "$ids" -o "$npy" --routes "$routes"
grep -q "^written    $npy: float32 \[7, 512\]; $routes: 7 tokens in 2 layers\$" "$tmp/err" ||
    complain "written: $(cat "$tmp/err")"

# ---- what is no list of ids
refuse()
{
    printf '%s' "$1" >"$tmp/bad.json"
    expect 2 "$2" "$numoe" eval -q -m "$fixture" --logits "$tmp/bad.json" -o "$tmp/bad.npy"
    test -e "$tmp/bad.npy" && complain "a file for '$1'"
}
refuse '' 'bad.json: line 1'
refuse '[1, 2' 'bad.json: line 1'
refuse '[1, 2] x' 'bad.json: line 1'
refuse '{"ids": [1]}' 'not a JSON array'
refuse '[]' 'not a JSON array'
refuse '[1, "2"]' 'element 1 is not a token id'
refuse '[1.5]' 'element 0 is not a token id'
refuse '[1, -1]' 'element 1 is not a token id'
refuse '[1, 99999999999]' 'element 1 is not a token id'
refuse '[1, 512]' 'bad.json: token 1 has id 512'

# ---- files that cannot be written
expect 2 'nowhere/x.npy: cannot be created' "$numoe" eval -q -m "$fixture" --logits "$ids" \
    -o "$tmp/nowhere/x.npy"
expect 2 'is a directory' "$numoe" eval -q -m "$fixture" --logits "$ids" -o "$tmp"
if test -w /dev/full; then
    expect 1 '/dev/full: No space left' "$numoe" eval -q -m "$fixture" --logits "$ids" -o /dev/full
    expect 1 '/dev/full: No space left' "$numoe" eval -q -m "$fixture" --logits "$ids" \
        -o "$tmp/half.npy" --routes /dev/full
    test -c /dev/full || complain '/dev/full was replaced'
fi
(
    ulimit -f 8 # blocks of 512 bytes or of 1 KiB: less than the file needs
    "$numoe" eval -q -m "$fixture" --logits "$ids" -o "$tmp/large.npy" 2>"$tmp/err"
)
test $? -eq 1 || complain "file too large: $(cat "$tmp/err")"
grep -q '^numoe: .*large.npy: File too large' "$tmp/err" || complain "too large: $(cat "$tmp/err")"
ls -A "$tmp" | grep -q 'large\|^\.' && complain "half a file: $(ls -A "$tmp")"

# ---- perplexity: the same for every number of workers and every chunk
head -c 6000 "$src/tests/data/fable/heldout.txt" >"$tmp/text"
expect 0 '' "$numoe" eval -q --perplexity "$tmp/text" --window 128
grep -Eq '^perplexity [0-9]+\.[0-9]{4} \+/- [0-9]+\.[0-9]{4} \([0-9]+ tokens scored in [0-9]+ windows of 128\)$' \
    "$tmp/out" || complain "perplexity: $(cat "$tmp/out")"
awk '{ exit !($2 > 10 && $2 < 40) }' "$tmp/out" || complain "perplexity: $(cat "$tmp/out")"
cp "$tmp/out" "$tmp/first"
expect 0 '' "$numoe" eval -q --perplexity "$tmp/text" --window 128 -t 1 --chunk 50
same "$tmp/first" "$tmp/out" 'perplexity again'
expect 0 '*' "$numoe" eval --perplexity "$tmp/text"
grep -Eq '^[0-9]+ of [0-9]+ windows, perplexity [0-9.]+$' "$tmp/err" || complain 'running value'
grep -Eq '^not used   [0-9]+ tokens at the end, less than a window$' "$tmp/err" ||
    complain "the rest: $(cat "$tmp/err")"
grep -Eq '^evaluated  [0-9]+ tokens in .* tokens/s$' "$tmp/err" || complain 'speed'

# ---- several nodes, each with windows of its own: the same number
two='pack:2 [numa(memory=64GiB)] core:2 pu:1'
for mode in auto throughput latency; do
    expect 0 '*' "$numoe" eval --perplexity "$tmp/text" --window 128 --topology "$two" \
        --placement replicate --mode $mode
    same "$tmp/first" "$tmp/out" "perplexity in mode $mode"
    case $mode in
    latency) grep -q '^mode ' "$tmp/err" && complain "$mode: $(cat "$tmp/err")" ;;
    *) grep -q '^mode  *throughput: 2 nodes' "$tmp/err" || complain "$mode: $(cat "$tmp/err")" ;;
    esac
done
expect 2 'take the placement replicate' "$numoe" eval -q --perplexity "$tmp/text" --topology "$two" \
    --placement slice --mode throughput
expect 0 '' "$numoe" eval -q --perplexity "$tmp/text" --window 128 --mode throughput \
    --topology 'pack:1 [numa(memory=64GiB)] core:2 pu:1'
same "$tmp/first" "$tmp/out" 'perplexity of one node in mode throughput'
expect 2 "'fast' is none of latency" "$numoe" eval --perplexity "$tmp/text" --mode fast
expect 2 'logits has one' "$numoe" eval --logits "$ids" -o "$npy" --mode latency

exit $bad
