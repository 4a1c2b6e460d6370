#!/bin/sh
# numoe plan, and running by a plan: the same text from every placement, plans that go out and come
# back, statistics, and refusals in one line.
. "$(dirname "$0")/lib.sh"

two='pack:2 [numa(memory=64GiB)] core:3 pu:1'
greedy='--temp 0 --repeat-penalty 1 -n 8'

# shellcheck disable=SC2086
tell() { "$numoe" run $greedy -p 'Once upon a time' "$@" </dev/null; }

tell -q --topology 'pack:1 [numa(memory=64GiB)] core:2 pu:1' --placement slice >"$tmp/one" ||
    complain 'one node'
for mode in auto slice shard replicate interleave; do
    "$numoe" plan --topology "$two" --placement $mode >"$tmp/out" || complain "plan $mode"
    grep -q '^predicted  *[0-9.]* tokens/s' "$tmp/out" || complain "$mode: no prediction"
    tell -q --topology "$two" --placement $mode --audit >"$tmp/more" 2>"$tmp/err"
    same "$tmp/one" "$tmp/more" "placement $mode"
    test "$(grep -c '^node ' "$tmp/err")" -ge 1 || complain "$mode: no audit: $(cat "$tmp/err")"
    if test $mode = interleave; then
        grep -q ' 0 B from other nodes' "$tmp/err" && complain 'interleave reads nothing remotely'
    else
        grep '^node ' "$tmp/err" | grep -vq ' 0 B from other nodes' &&
            complain "$mode reads remotely: $(cat "$tmp/err")"
    fi
    test $mode = replicate && want=1 || want=0
    test "$(grep -c 'for 2 sequences, one on each node' "$tmp/out")" -eq $want ||
        complain "$mode: prediction for several sequences: $(cat "$tmp/out")"
    # a plan goes out, comes back, and is what it was
    "$numoe" plan --topology "$two" --placement $mode --json >"$tmp/plan" || complain "json $mode"
    "$numoe" plan --topology "$two" --plan "$tmp/plan" --json >"$tmp/again" || complain "back $mode"
    cmp -s "$tmp/plan" "$tmp/again" || complain "plan of $mode is another when it comes back"
    tell -q --topology "$two" --plan "$tmp/plan" >"$tmp/more"
    same "$tmp/one" "$tmp/more" "plan of $mode"
done

# ---- statistics become replicas
tell -q --expert-stats-out "$tmp/stats" >"$tmp/more"
same "$tmp/one" "$tmp/more" 'with statistics'
"$numoe" plan --topology "$two" --placement shard --expert-stats "$tmp/stats" \
    --replica-budget 10% --json >"$tmp/plan"
grep -Eq '"replica_bytes":[1-9]' "$tmp/plan" || complain 'statistics give no replicas'
tell -q --topology "$two" --plan "$tmp/plan" >"$tmp/more"
same "$tmp/one" "$tmp/more" 'replicas'
# ---- without statistics there are places for them, in the plan and in a file of it
"$numoe" plan --topology "$two" --placement shard --replica-budget 10% >"$tmp/more"
grep -Eq 'kept free for copies of experts' "$tmp/more" || complain 'no memory is reserved'
grep -Eq '^replicas +places for [1-9][0-9]* copies' "$tmp/more" || complain 'no places'
"$numoe" plan --topology "$two" --placement shard --replica-budget 10% --json >"$tmp/places"
head -c 1500 "$src/README.md" >"$tmp/long"
for option in '--placement shard --replica-budget 10%' "--plan $tmp/places --adapt" "--plan $tmp/plan --adapt"; do
    # shellcheck disable=SC2086
    "$numoe" run --temp 0 -n 8 -f "$tmp/long" --chunk 32 --topology "$two" $option \
        >"$tmp/out" 2>"$tmp/err" </dev/null || complain "$option: $(cat "$tmp/err")"
    test -f "$tmp/first" || cp "$tmp/out" "$tmp/first"
    same "$tmp/first" "$tmp/out" "$option"
    grep -Eq '[0-9]+ cop(y|ies) made, [0-9]+ in place of others, of at most [1-9]' "$tmp/err" ||
        complain "$option: not said what was copied: $(cat "$tmp/err")"
done
# few tokens, and little memory
"$numoe" run --temp 0 -n 4 -p Once --topology "$two" --placement shard --replica-budget 10% >"$tmp/out" 2>"$tmp/err" </dev/null
grep -Eq 'no copies yet, of at most [1-9][0-9]*: the first are made after 256 tokens, [1-9] were counted' "$tmp/err" ||
    complain "not said when copies come: $(cat "$tmp/err")"

# ---- experts in the file
tell -q --mmap --topology "$two" >"$tmp/more" 2>"$tmp/err"
same "$tmp/one" "$tmp/more" 'experts in the file'
grep -q 'experts stay in the file (--mmap).*slower' "$tmp/err" || complain "not said: $(cat "$tmp/err")"
tell -q --mmap --topology "$two" --audit >"$tmp/more" 2>"$tmp/err"
test "$(grep -c ' 0 B from other nodes, [1-9][0-9.]* [kM]*B from the file;' "$tmp/err")" -eq 2 ||
    complain "no bytes from the file: $(cat "$tmp/err")"
# What is planned with them in the file needs less, and is refused where it has to be in memory.
little='-c 64 --chunk 16'
small='pack:1 [numa(memory=40MiB)] core:2 pu:1'
"$numoe" plan --mmap --topology "$small" -t 1 $little >"$tmp/out" || complain 'plan --mmap'
grep -q '^memory .*; 0.02 GB of experts stay in the file' "$tmp/out" || complain "$(cat "$tmp/out")"
expect 3 'for activations, context and loading, where 32.0 MiB are in all .*--mmap' \
    "$numoe" plan --topology "$small" -t 1 $little

# ---- a model and a machine that are not here, and a GPU
"$numoe" plan --geometry deepseek-v3 --topology "$two" --bandwidth 300 >"$tmp/out" 2>"$tmp/err" &&
    complain 'deepseek-v3 fits 128 GiB'
"$numoe" plan --geometry qwen3-30b --type Q4_K_M --topology "$two" --bandwidth 300 \
    --gpu-model 24GiB,1008GB/s,pcie4x16 >"$tmp/out" || complain 'plan --geometry'
for row in slice 'slice [+] GPU' shard replicate interleave; do
    grep -Eq "^$row  +[0-9.]+ " "$tmp/out" || complain "no row '$row': $(cat "$tmp/out")"
done
awk '/^never more than/ { bound = $4 } /^(slice|shard|replicate|interleave)  / { if ($2 > most) most = $2 }
    END { exit !(most > 0 && most <= bound) }' "$tmp/out" || complain "above the bound: $(cat "$tmp/out")"
# one answer has numbers of one kind
"$numoe" plan --no-probe >"$tmp/out"
grep -q '(assumed)' "$tmp/out" || complain 'plan --no-probe'
grep -q measured "$tmp/out" && complain "measured and assumed: $(cat "$tmp/out")"
"$numoe" plan >"$tmp/out"
test "$(grep -c '(bandwidth measured[^)]*)' "$tmp/out")" -eq 1 || complain "not measured: $(cat "$tmp/out")"
test "$(grep -c 'GB/s (measured[^)]*)' "$tmp/out")" -eq 1 || complain "not measured: $(cat "$tmp/out")"
# more workers than cores read no faster
for n in 6 60; do
    "$numoe" plan --topology "$two" --placement slice -t $n | sed -n 's/^never more than \([^ ]*\).*/\1/p' >"$tmp/of$n"
done
test -s "$tmp/of6" || complain 'no bound'
same "$tmp/of6" "$tmp/of60" 'the bound with 60 workers on 6 cores'
# with a GPU nothing is above the bound with a GPU
"$numoe" plan --geometry mixtral --topology "$two" --gpu-model 80GiB,3000GB/s,pcie5x16 >"$tmp/out"
awk '/^with the GPU never more than/ { bound = $6 } /^slice [+] GPU/ { gpu = $4 }
    END { exit !(gpu > 0 && gpu <= bound) }' "$tmp/out" || complain "GPU above the bound: $(cat "$tmp/out")"
"$numoe" plan --mmap --topology "$two" >"$tmp/out"
grep -q '^predicted .*while all experts are in the page cache' "$tmp/out" &&
    grep -q 'from the disk: 0.00[1-9] GB for each token' "$tmp/out" ||
    complain "experts in the file are predicted as in memory: $(cat "$tmp/out")"

# ---- refusals
expect 2 'none of deepseek' "$numoe" plan --geometry gpt-9
expect 2 'none of F16' "$numoe" plan --geometry mixtral --type Q9
expect 2 'both give a model' "$numoe" plan --geometry mixtral -m "$fixture"
expect 2 'belongs to --geometry' "$numoe" plan --type Q8_0
expect 2 'give memory, bandwidth and link' "$numoe" plan --no-probe --gpu-model 24GiB,pcie4x16
expect 2 'give memory, bandwidth and link' "$numoe" plan --no-probe --gpu-model big
for option in --no-probe --json; do
    expect 2 'give memory, bandwidth and link' "$numoe" plan $option --gpu-model big
    test -s "$tmp/out" && complain 'a plan with a GPU that is refused'
done
expect 2 'JSON has the plan alone' "$numoe" plan --json --gpu-model 24GiB,1008GB/s,pcie4x16
expect 2 '--gpu is for a model that runs' "$numoe" plan --gpu emu
expect 2 '--vram-budget is for a model' "$numoe" plan --vram-budget 1GB
expect 2 '--bandwidth' "$numoe" plan --bandwidth -1
# ---- what would be ignored
run() { "$numoe" run -q -n 1 -p x --topology "$two" "$@"; }
for command in 'plan' 'run -p x' 'bench'; do
    # shellcheck disable=SC2086
    expect 2 '--placement and --plan both' "$numoe" $command --plan "$tmp/plan" --placement auto
    # shellcheck disable=SC2086
    expect 2 'leave out a budget for replicas, or the plan' "$numoe" $command --plan "$tmp/plan" \
        --replica-budget 1%
    # shellcheck disable=SC2086
    expect 2 'leave out expert statistics, or the plan' "$numoe" $command --plan "$tmp/plan" \
        --expert-stats "$tmp/stats"
done
expect 2 'leave out a bandwidth, or the plan' "$numoe" plan --plan "$tmp/plan" --bandwidth 10
expect 2 'have no replicas' run --placement shard --replica-budget 10% --mmap
expect 2 'adapt needs a budget' run --adapt
expect 2 'for the placement shard: slice has none' run --adapt --placement slice
expect 0 'experts have no replicas: the placement is slice' run --adapt --replica-budget 10%
"$numoe" plan --topology "$two" --placement shard --json >"$tmp/none"
expect 0 "the plan $tmp/none has no further copies" run --plan "$tmp/none" --adapt
expect 0 'the budget for them has no room for one' run --placement shard --replica-budget 1KiB
expect 0 'the budget for them has no room for one' run --placement shard --replica-budget 1KiB --adapt
expect 0 'the budget for them has no room for one' run --placement shard --replica-budget 1KiB \
    --expert-stats "$tmp/stats"
expect 2 'for the placement shard, slice makes none' run --placement slice --replica-budget 10% \
    --expert-stats "$tmp/stats"
expect 2 'slice does not use them' run --placement slice --expert-stats "$tmp/stats"
expect 0 '' "$numoe" bench -p 4 -n 0 -r 1 --topology "$two" --placement slice,shard \
    --replica-budget 10% --expert-stats "$tmp/stats"
expect 2 '--gpu-experts belongs to --gpu' run --gpu-experts 3
expect 2 '--gpu-devices belongs to --gpu' run --gpu-devices 0
expect 2 '--vram-budget belongs to --gpu' run --vram-budget 1GB
expect 2 "'slices' is none of" "$numoe" plan --placement slices
expect 2 'neither a size' "$numoe" plan --replica-budget 10X
expect 2 'neither a size' "$numoe" plan --replica-budget -1
expect 2 'neither a size' "$numoe" plan --replica-budget 1.2.3GB
expect 2 'unexpected argument' "$numoe" plan file.gguf
expect 2 'No such file' "$numoe" plan --plan "$tmp/nowhere"
expect 2 'No such file' "$numoe" plan --expert-stats "$tmp/nowhere"
expect 2 'is missing' "$numoe" plan --expert-stats "$NUMOE_MODEL"
expect 3 'replicate: .* slice needs one copy' \
    "$numoe" plan --topology 'pack:2 [numa(memory=46MiB)] core:3 pu:1' --placement replicate -t 2 $little
expect 3 'take a smaller quantization' "$numoe" run -p x --topology 'pack:1 [numa(memory=12MiB)] core:1 pu:1'
# a context that is too long is answered with one that fits, and that one does
little='pack:1 [numa(memory=60MiB)] core:2 pu:1'
expect 3 'a context of [0-9]+ tokens [(]-c [0-9]+[)] would fit with smaller chunks [(]--chunk [0-9]+[)]$' \
    "$numoe" plan --topology "$little" -c 2048
expect 0 '' "$numoe" plan --topology "$little" $(grep -Eo -e '-(c|-chunk) [0-9]+' "$tmp/err")
little='pack:1 [numa(memory=81MiB)] core:2 pu:1'
expect 3 'where .* a context of [0-9]+ tokens [(]-c [0-9]+[)] would fit$' \
    "$numoe" plan --topology "$little" -c 2048 --kv f32
expect 0 '' "$numoe" plan --topology "$little" --kv f32 $(grep -Eo -e '-c [0-9]+' "$tmp/err")
# ---- ulimit is a limit like others, and counts for what is loaded here, whatever machine is described
limited() { sh -c 'ulimit "$0" "$1" && shift && exec "$@"' "$@"; }
huge='pack:1 [numa(memory=64GiB)] core:2 pu:1'
if limited -v 100000 "$numoe" version >"$tmp/out" 2>&1; then # sanitizers need more than that to start
    for limit in '-v 100000 ulimit -v leaves of address space' '-d 60000 ulimit -d leaves for data'; do
        # shellcheck disable=SC2086
        set -- $limit
        option=$1 kib=$2
        shift 2
        expect 3 "weights .*what $*.*(raise it|more memory)" limited $option $kib "$numoe" run -q -n 1 -p x -t 2
        expect 3 "weights .*what $*.*(raise it|more memory)" limited $option $kib "$numoe" run -q -n 1 -p x \
            --topology "$huge"
        expect 0 '' limited $option $kib "$numoe" plan --topology "$huge"
        expect 0 '' limited $option 200000 "$numoe" run -q -n 1 -p x -t 2
    done
    expect 3 'weights alone need [0-9.]* MiB of [0-9.]* MiB [(]what ulimit -d leaves.*: take a smaller .* or more memory' \
        limited -d 50000 "$numoe" run -q -n 1 -p x -t 2
else
    echo 'SKIPPED: ulimit (this build needs more address space to start)'
fi
expect 3 'weights alone need [0-9.]* MiB of [0-9.]* MiB [(]in all on 1 node[)]: .* or more memory' \
    "$numoe" plan --topology 'pack:1 [numa(memory=24MiB)] core:1 pu:1'
# ---- a plan's numbers agree with its slices, and what it says does not reach the terminal raw
"$numoe" plan --no-probe --json >"$tmp/whole"
changed() { sed "$1" "$tmp/whole" >"$tmp/changed"; cmp -s "$tmp/whole" "$tmp/changed" && complain "$1"; }
changed 's/"workers":/&-/'
expect 2 '"workers" must be a whole number' "$numoe" plan --no-probe --plan "$tmp/changed"
changed 's/"buffer_bytes":/&"x/; s/"buffer_bytes":"x[0-9]*/&"/'
expect 2 '"buffer_bytes" must be a whole number' "$numoe" plan --no-probe --plan "$tmp/changed"
changed 's/"weight_bytes":/&9/'
expect 2 '"weight_bytes" is 9.*, the slices have' "$numoe" plan --no-probe --plan "$tmp/changed"
changed 's/"predicted_tokens_per_s":/&-/'
expect 2 '"predicted_tokens_per_s" must be a number from 0' "$numoe" plan --no-probe --plan "$tmp/changed"
changed 's/"replica_share":0/"replica_share":7/'
expect 2 '"replica_share" must be a number from 0 to 1' "$numoe" run -q -p x --plan "$tmp/changed"
expect 2 'made with other options' "$numoe" plan --mmap --no-probe --plan "$tmp/whole"
changed 's/"reason":"/&\\u001b[31m\\u009b/'
expect 0 '' "$numoe" plan --no-probe --plan "$tmp/changed"
grep -q '^reason  *?\[31m??' "$tmp/out" || complain "raw reason: $(cat -v "$tmp/out")"
echo '{' >"$tmp/bad"
expect 2 'bad: line 2' "$numoe" run -p x --plan "$tmp/bad"
expect 2 'for 2 nodes, this machine has 1' "$numoe" plan \
    --topology 'pack:1 [numa(memory=64GiB)] core:6 pu:1' --plan "$tmp/plan"

# ---- a plan for some of the nodes comes back too
"$numoe" plan --topology 'pack:1 [numa(memory=64GiB)] core:3 pu:1' --json >"$tmp/alone" || complain 'one node'
expect 0 'alone is for 1 of 2 nodes: the others take no part' "$numoe" plan --topology "$two" --plan "$tmp/alone"
grep -Eq '^ +0 +3 +30.0 +100.0 ' "$tmp/out" || complain "one of two: $(cat "$tmp/out")"
tell -q --topology "$two" --plan "$tmp/alone" >"$tmp/more"
same "$tmp/one" "$tmp/more" 'a plan for one of two nodes'
sed 's/"os_index":0/"os_index":7/' "$tmp/alone" >"$tmp/changed"
expect 2 'for 1 nodes, this machine has 2' "$numoe" plan --topology "$two" --plan "$tmp/changed"

expect 2 'for another model' "$numoe" plan -m "$fixture" --topology "$two" --plan "$tmp/plan"
expect 2 'statistics of 6 layers' "$numoe" plan -m "$fixture" --expert-stats "$tmp/stats"

exit $bad
