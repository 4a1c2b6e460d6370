#!/bin/sh
# numoe experts: statistics collected, shown in every format, merged, and taken by a plan.
. "$(dirname "$0")/lib.sh"

printf 'Once upon a time there was a fox who met a crow. The crow had a piece of cheese.\n' >"$tmp/text"
"$numoe" experts collect -q -f "$tmp/text" -f "$tmp/text" --window 16 -o "$tmp/stats" </dev/null ||
    complain 'collect'
"$numoe" experts show "$tmp/stats" >"$tmp/table" || complain 'show'
grep -q '^  all .*100.0 %\|^  all ' "$tmp/table" || complain "no line for all: $(cat "$tmp/table")"
grep -q 'commonest pair' "$tmp/table" || complain 'no pairs'

# Five MoE layers of 32 experts, four for a token: counts of each layer are four times the tokens.
"$numoe" experts show "$tmp/stats" --format experts -o "$tmp/csv" || complain 'csv'
awk -F, 'NR > 1 { n[$1] += $3; w[$1] += $3 * $5 } END { for (l in n) print n[l] % 4, (n[l] == n[1]),
    (w[l] > 0) }' "$tmp/csv" | sort -u >"$tmp/got"
echo '0 1 1' >"$tmp/want"
same "$tmp/want" "$tmp/got" 'counts of layers'
test "$(wc -l <"$tmp/csv")" -eq 161 || complain 'rows of the CSV'
"$numoe" experts show "$tmp/stats" --format pairs >"$tmp/pairs"
awk -F, -v n="$(awk -F, 'NR > 1 && $1 == 1 { n += $3 } END { print n }' "$tmp/csv")" \
    'NR > 1 && $1 == 1 { p += $4 } END { if (p != n / 4 * 6) print p, n }' "$tmp/pairs" >"$tmp/got"
test -s "$tmp/got" && complain "four experts are six pairs: $(cat "$tmp/got")"
"$numoe" experts show "$tmp/stats" --format curve | tail -1 | grep -q '^all,100,100.000$' ||
    complain 'the curve ends at all'
"$numoe" experts show "$tmp/stats" --format svg -o "$tmp/map.svg" || complain svg
test "$(grep -c '<title>' "$tmp/map.svg")" -eq 160 || complain 'cells of the heat map'

"$numoe" experts merge "$tmp/stats" "$tmp/stats" -o "$tmp/twice" || complain merge
"$numoe" experts show "$tmp/twice" --format curve >"$tmp/a"
"$numoe" experts show "$tmp/stats" --format curve >"$tmp/b"
same "$tmp/a" "$tmp/b" 'the same twice has the same curve'

two='pack:2 [numa(memory=64GiB)] core:3 pu:1'
"$numoe" plan --topology "$two" --placement shard --expert-stats "$tmp/twice" --replica-budget 10% |
    grep -Eq '^replicas .* experts on several nodes serve [1-9][0-9]* % of choices' ||
    complain 'the plan does not say what replicas serve'
"$numoe" run -p Once -n 4 --topology "$two" --placement shard --expert-stats "$tmp/twice" \
    --replica-budget 10% </dev/null 2>&1 >/dev/null | grep -q '^replicas .* served' ||
    complain 'the run does not say what replicas served'

# ---- refusals
imatrix=$src/tests/data/imatrix
"$numoe" experts show "$imatrix/counts.gguf" >/dev/null || complain 'imatrix'
expect 2 'collect, show, merge' "$numoe" experts
expect 2 'collect, show, merge, not sort' "$numoe" experts sort
expect 2 'needs a text' "$numoe" experts collect -o "$tmp/x"
expect 2 'needs files' "$numoe" experts show
expect 2 'needs a file to write' "$numoe" experts merge "$tmp/stats"
expect 2 'none of table' "$numoe" experts show "$tmp/stats" --format png
expect 2 'of means' "$numoe" experts show "$imatrix/means.dat"
expect 2 'do not go together' "$numoe" experts merge "$tmp/stats" "$imatrix/counts.gguf" -o "$tmp/x"
expect 2 'chosen together' "$numoe" experts show "$imatrix/counts.gguf" --format pairs
expect 2 'the model has' "$numoe" plan --expert-stats "$imatrix/counts.gguf"
expect 2 'number of entries' "$numoe" experts show "$tmp/text"
test -e "$tmp/x" && complain 'a file was left behind'
exit $bad
