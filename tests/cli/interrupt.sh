#!/bin/sh
# Ctrl-C: the first one ends a generation in good order, an evaluation leaves nothing behind.
. "$(dirname "$0")/lib.sh"

ulimit -c 0
# A shell starts background jobs with SIGINT ignored, which the program respects: env restores it.
start()
{
    rm -f "$tmp/out" "$tmp/err"
    env --default-signal=INT,QUIT,HUP "$numoe" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
}

env --default-signal=INT,QUIT,HUP true 2>/dev/null || { echo 'env cannot restore signals'; exit 77; }

# wait_for FILE PATTERN: until the file has such a line; 60 s at most.
wait_for()
{
    wait_until 60 grep -q "$2" "$1" || complain "no '$2': $(cat "$tmp/err")"
}

# ---- a story that is long enough to be interrupted
start run --ignore-eog -n 2000 --seed 1 -p 'Once upon a time'
wait_for "$tmp/out" .
kill -INT $pid
wait $pid
status=$?
test $status -eq 0 || complain "status $status of a generation that was stopped"
grep -Eq '^generated  [0-9]+ tokens? in .*, stopped$' "$tmp/err" || complain "$(cat "$tmp/err")"
test "$(tail -c 1 "$tmp/out")" = '' || complain "the last line is not ended"

# ---- while the prompt is read there is nothing to keep
head -c 5000 "$src/tests/data/fable/heldout.txt" >"$tmp/prompt"
start run -f "$tmp/prompt" --chunk 1
wait_for "$tmp/err" '^sampling'
kill -INT $pid
wait $pid
status=$?
test $status -eq 130 || complain "status $status of a prompt that was not read to its end"
grep -q '^numoe: interrupted$' "$tmp/err" || complain "$(cat "$tmp/err")"
test -s "$tmp/out" && complain "text of nothing: $(od -c "$tmp/out")"

# ---- SIGTERM ends it at once
start run --ignore-eog -n 2000 --seed 1 -p 'Once upon a time'
wait_for "$tmp/out" .
kill -TERM $pid
wait $pid
status=$?
test $status -eq 143 || complain "status $status after SIGTERM"
grep -q '^generated' "$tmp/err" && complain 'a summary after SIGTERM'

# ---- an evaluation: status 130, no file
# Seconds in all on the fastest kernels, and less than a minute to the first report on the slowest.
head -c 60000 "$src/tests/data/fable/heldout.txt" >"$tmp/text"
start eval --perplexity "$tmp/text" --window 64 --chunk 64
wait_for "$tmp/err" windows
kill -INT $pid
wait $pid
status=$?
test $status -eq 130 || complain "status $status of an evaluation that was stopped"
grep -q '^perplexity' "$tmp/out" && complain 'a result of half an evaluation'
grep -q '^numoe: interrupted$' "$tmp/err" || complain "$(cat "$tmp/err")"

awk 'BEGIN { printf "[0"; for (i = 1; i < 2000; i++) printf ", %d", 5 + i % 4000; print "]" }' \
    >"$tmp/ids.json"
for signal in INT TERM QUIT; do
    start eval --logits "$tmp/ids.json" -o "$tmp/out.npy" --chunk 1
    for _ in $(seq 300); do
        ls -A "$tmp" | grep -q '^\.numoe-' && break
        sleep 0.1
    done
    kill -$signal $pid
    wait $pid
    status=$?
    case $signal$status in INT130 | TERM143 | QUIT131) ;; *) complain "$signal: status $status" ;; esac
    ls -A "$tmp" | grep -q 'npy\|^\.' && complain "$signal left behind: $(ls -A "$tmp")"
done

exit $bad
