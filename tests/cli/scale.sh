#!/bin/sh
# numoe scale: points measured once, results that grow, a report of them.
. "$(dirname "$0")/lib.sh"

scale() { "$numoe" scale -o "$tmp/out.d" -n 4 -r 1 "$@" </dev/null 2>"$tmp/err"; }

scale --artificial --sockets 1,2 --cores 1 --placement slice,shard || complain "scale: $(cat "$tmp/err")"
test "$(wc -l <"$tmp/out.d/results.jsonl")" -eq 4 || complain 'lines of results'
test "$(wc -l <"$tmp/out.d/results.csv")" -eq 5 || complain 'rows of the CSV'
test "$(grep -c '^<tr><td>' "$tmp/out.d/report.html")" -eq 4 || complain 'rows of the page'
awk -F, '$4 == 1 { if ($9 != 1 || $10 != 1) exit 1 }' "$tmp/out.d/results.csv" ||
    complain 'the smallest point is what speed-up is measured against'
"$numoe" topo --json | sed -n 's/^  \("machine": .*\),$/\1/p' | tr -d ' ' >"$tmp/here"
tr -d ' ' <"$tmp/out.d/results.jsonl" | sed 's/.*\("machine":"[^"]*"\).*/\1/' | uniq >"$tmp/there"
# How much memory is free changes.
same_machine() { sed 's/,[^,]*GiB//' "$1"; }
test "$(same_machine "$tmp/here")" = "$(same_machine "$tmp/there")" ||
    complain "the machine is the one that is made up: $(cat "$tmp/there")"
# Of each series its points, and what a line joins.
awk '/^"/ { block++ } $1 == 2 { n[block]++ } END { exit !(n[1] == 1 && n[2] == 1 && block == 4) }' \
    "$tmp/out.d/plots.gp" || complain "blocks of plots: $(cat "$tmp/out.d/plots.gp")"
if command -v gnuplot >/dev/null; then
    for plot in speedup efficiency bandwidth roofline; do
        test -s "$tmp/out.d/$plot.svg" && test -s "$tmp/out.d/$plot.png" || complain "no plot $plot"
    done
    grep -q '<img src="roofline.svg"' "$tmp/out.d/report.html" || complain 'plots on the page'
fi

# what is there is not measured again; what was cut off is
head -c -40 "$tmp/out.d/results.jsonl" >"$tmp/cut"
cp "$tmp/cut" "$tmp/out.d/results.jsonl"
printf '\n' >>"$tmp/out.d/results.jsonl"
scale --artificial --sockets 1,2 --cores 1 --placement slice,shard || complain 'again'
test "$(grep -c 'tokens/s$' "$tmp/err")" -eq 1 || complain "measured again: $(cat "$tmp/err")"
test "$(wc -l <"$tmp/out.d/results.csv")" -eq 5 || complain 'rows after going on'

# points of another kind are not mixed with them
more='--sockets 1,2 --cores 1 --placement slice,shard'
# shellcheck disable=SC2086
{
    expect 2 'measured with --artificial: choose another folder' \
        "$numoe" scale -o "$tmp/out.d" -n 4 $more
    expect 2 'measured with another -n' "$numoe" scale -o "$tmp/out.d" -n 5 --artificial $more
    expect 2 'measured of another model' \
        "$numoe" scale -o "$tmp/out.d" -n 4 -m "$tmp/none" --artificial $more
}
test "$(wc -l <"$tmp/out.d/results.csv")" -eq 5 || complain 'rows after a refusal'

# the same number of workers on one node and on two: a line joins the faster
scale --artificial --nodes 1,2 --cores 1,2 --placement slice || complain "ways: $(cat "$tmp/err")"
awk '/^"/ { block++ } block == 1 && $1 == 2 { n++; if ($2 + 0 > best) best = $2 + 0 }
    block == 2 && $1 == 2 { m++; line = $2 + 0 } END { exit !(n == 3 && m == 1 && line == best) }' \
    "$tmp/out.d/plots.gp" || complain "lines: $(cat "$tmp/out.d/plots.gp")"

# a real part of this machine, and one that it has not
rm -rf "$tmp/out.d"
scale --cores 1,1000 || complain "bound: $(cat "$tmp/err")"
grep -q 'c1000 .*this machine has not so many' "$tmp/err" || complain "$(cat "$tmp/err")"
test "$(wc -l <"$tmp/out.d/results.csv")" -eq 2 || complain 'rows of a real part'
cpu=$(sed -n 's/.*"cpus":"\([0-9]*\)".*/\1/p' "$tmp/out.d/results.jsonl")
taskset -c "${cpu:-none}" true || complain "the CPU of a point: $(cat "$tmp/out.d/results.jsonl")"

expect 2 'give a folder' "$numoe" scale
expect 2 'whole number from 1' "$numoe" scale -o "$tmp/x" --cores 0

exit $bad
