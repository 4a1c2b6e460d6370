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

# a real part of this machine, and one that it has not
rm -rf "$tmp/out.d"
scale --cores 1,1000 || complain "bound: $(cat "$tmp/err")"
grep -q 'c1000 .*this machine has not so many' "$tmp/err" || complain "$(cat "$tmp/err")"
test "$(wc -l <"$tmp/out.d/results.csv")" -eq 2 || complain 'rows of a real part'

expect 2 'give a folder' "$numoe" scale
expect 2 'whole number from 1' "$numoe" scale -o "$tmp/x" --cores 0

exit $bad
