#!/bin/sh
# numoe bench in its formats; --profile and --trace of run and eval.
. "$(dirname "$0")/lib.sh"

few='-p 8 -n 4 -r 2'
# shellcheck disable=SC2086
bench() { "$numoe" bench $few "$@" </dev/null; }

bench -t 1,2 --placement slice,auto >"$tmp/md" || complain 'md'
test "$(grep -c '^| fable-moe ' "$tmp/md")" -eq 8 || complain "rows: $(cat "$tmp/md")"
grep -Eq '\| tg4 \| [0-9.]+ ± [0-9.]+ \| [0-9.]+ \| [0-9]+ % \| .*experts [0-9]+ %' "$tmp/md" ||
    complain "no row as it should be: $(cat "$tmp/md")"
bench -t 1 -o csv -b 1,2 --output-file "$tmp/csv" || complain csv
test "$(wc -l <"$tmp/csv")" -eq 5 || complain "csv: $(cat "$tmp/csv")"
bench -t 1 -o jsonl >"$tmp/jsonl" || complain jsonl
test "$(grep -c '^{.*"tokens_per_second": [0-9.]*, .*"profile": {.*}}$' "$tmp/jsonl")" -eq 2 ||
    complain "jsonl: $(cat "$tmp/jsonl")"
bench -t 1 -o json >"$tmp/json" || complain json
head -1 "$tmp/json" | grep -q '^\[$' || complain 'json begins'
tail -1 "$tmp/json" | grep -q '^\]$' || complain 'json ends'

expect 2 'none of md, csv' "$numoe" bench -o xml
expect 2 'whole number from 1' "$numoe" bench -t 1,0
expect 2 'the list is empty' "$numoe" bench -n ,
expect 2 "none of auto" "$numoe" bench --placement slice,best
expect 2 'context' "$numoe" bench -p 1000000 -n 0 -t 1

# ---- profile and trace
"$numoe" run -p Once -n 8 --temp 0 --ignore-eog --profile --trace "$tmp/trace" </dev/null \
    >"$tmp/one" 2>"$tmp/err" || complain 'run --profile'
"$numoe" run -q -p Once -n 8 --temp 0 --ignore-eog </dev/null >"$tmp/two"
same "$tmp/one" "$tmp/two" 'the text with a profile'
for stage in attention router experts 'shared experts' 'dense layers' head meetings sampling all; do
    grep -q "^$stage  " "$tmp/err" || complain "no row '$stage': $(cat "$tmp/err")"
done
grep -q '"traceEvents"' "$tmp/trace" || complain 'trace'
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["traceEvents"]' "$tmp/trace" ||
        complain 'a trace that is no JSON'
fi
# The table's rows are all of the time. What the system takes the processor away for is in no row: some tries.
try=0 percent=0
while [ $try -lt 5 ] && [ "$((percent < 970 || percent > 1030))" = 1 ]; do
    "$numoe" run -q -p Once -n 64 --temp 0 --ignore-eog --profile </dev/null >/dev/null 2>"$tmp/err"
    percent=$(sed -n 's/^all  *[0-9.]*  *\([0-9]*\)\.\([0-9]\) %.*/\1\2/p' "$tmp/err")
    percent=${percent:-0} try=$((try + 1))
done
test $((percent < 970 || percent > 1030)) = 0 || complain "rows are $percent thousandths: $(cat "$tmp/err")"
printf 'Once upon a time there was a fox who met a crow in the wood and told it a story.\n' >"$tmp/text"
"$numoe" eval --perplexity "$tmp/text" --window 16 --profile --trace "$tmp/trace2" </dev/null \
    >"$tmp/out" 2>"$tmp/err" || complain 'eval --profile'
grep -q '^experts ' "$tmp/err" && grep -q '"experts"' "$tmp/trace2" || complain 'profile of eval'
expect 2 'belong to --perplexity' "$numoe" eval --logits "$tmp/x" -o "$tmp/y" --profile

exit $bad
