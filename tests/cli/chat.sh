#!/bin/sh
# numoe chat, driven through a pipe.
. "$(dirname "$0")/lib.sh"

first='Tell me a story about a fox and a crow.'
second='Tell me a story about a princess and a dragon.'
# shellcheck disable=SC2086 # options are several words
options="-q --temp 0 -n 16"
answer() { "$numoe" run $options --chat -p "$1" </dev/null; }

answer "$first" >"$tmp/first"
answer "$second" >"$tmp/second"

# One turn is what run --chat says.
echo "$first" | "$numoe" chat $options >"$tmp/out" 2>"$tmp/err" || complain "chat: $(cat "$tmp/err")"
same "$tmp/first" "$tmp/out" 'first turn'
test -s "$tmp/err" && complain "-q is not quiet: $(cat "$tmp/err")"

# After /reset a question is answered as if it were the first; before, the answer depends on the past.
printf '%s\n/reset\n\n%s\n/quit\nnever read\n' "$first" "$second" |
    "$numoe" chat $options >"$tmp/out" 2>"$tmp/err" || complain "chat: $(cat "$tmp/err")"
cat "$tmp/first" "$tmp/second" >"$tmp/expected"
same "$tmp/expected" "$tmp/out" 'reset and quit'
printf '%s\n%s\n' "$first" "$second" | "$numoe" chat $options >"$tmp/out" 2>"$tmp/err" ||
    complain "chat: $(cat "$tmp/err")"
cmp -s "$tmp/expected" "$tmp/out" && complain 'the second answer does not know the first'

# What the session keeps from turn to turn must not change an answer: the same conversation, with
# everything evaluated anew, written by hand.
said=$(sed -n '1p' "$tmp/first")
if test "$(wc -l <"$tmp/first")" -eq 1; then
    "$numoe" run $options -p "<｜User｜>$first<｜Assistant｜>$said<｜end▁of▁sentence｜><｜User｜>$second<｜Assistant｜>" \
        >"$tmp/by-hand" </dev/null
    tail -n +2 "$tmp/out" >"$tmp/kept"
    same "$tmp/by-hand" "$tmp/kept" 'second turn'
else
    complain 'the first answer is not one line: choose another prompt for this test'
fi

# A system message comes first.
echo "$first" | "$numoe" chat $options -s 'Once upon a time there was a poor miller.' >"$tmp/out" 2>/dev/null
cmp -s "$tmp/first" "$tmp/out" && complain 'the system message changes nothing'

# Stop strings, and no end of a turn: as in run.
"$numoe" run $options --chat --stop fox -p "$first" >"$tmp/expected" </dev/null
echo "$first" | "$numoe" chat $options --stop fox >"$tmp/out" 2>/dev/null
same "$tmp/expected" "$tmp/out" '--stop'
"$numoe" run -q --temp 0 -n 300 --chat --ignore-eog -p "$first" >"$tmp/expected" </dev/null
echo "$first" | "$numoe" chat -q --temp 0 -n 300 --ignore-eog >"$tmp/out" 2>/dev/null
same "$tmp/expected" "$tmp/out" '--ignore-eog'

printf '/help\n' | "$numoe" chat $options >"$tmp/out" 2>"$tmp/err" || complain '/help: status'
grep -q '^/reset forgets' "$tmp/err" || complain "/help: $(cat "$tmp/err")"
# A script may say what it likes; a person who mistypes a command did not mean to say it (terminal.sh).
answer '/nonsense' >"$tmp/expected"
printf '/nonsense\n' | "$numoe" chat $options >"$tmp/out" 2>"$tmp/err" || complain '/nonsense: status'
same "$tmp/expected" "$tmp/out" '/nonsense'

# A conversation that has become too long ends a script.
printf '%s\n' "$first" | "$numoe" chat $options -c 12 >"$tmp/out" 2>"$tmp/err"
test $? -eq 2 || complain 'too long: status'
grep -q '^numoe: the conversation of 16 tokens leaves no room' "$tmp/err" ||
    complain "too long: $(cat "$tmp/err")"

"$numoe" chat $options </dev/null >"$tmp/out" 2>"$tmp/err" || complain 'end of input: status'
test -s "$tmp/out" && complain 'end of input: text'

exit $bad
