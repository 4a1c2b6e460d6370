#!/bin/sh
# What only a person at a terminal sees: bars that go away again, and a prompt.
. "$(dirname "$0")/lib.sh"

script -qec true /dev/null >/dev/null 2>&1 </dev/null || { echo 'no usable script(1)'; exit 77; }

# on_terminal COMMAND: its output, everything on one terminal, in $tmp/screen.
on_terminal() { script -qec "$1" /dev/null >"$tmp/screen" 2>&1; }

head -c 12000 "$src/tests/data/fable/heldout.txt" >"$tmp/text"
on_terminal "'$numoe' eval --perplexity '$tmp/text' --window 64 --chunk 32" </dev/null
grep -q 'evaluating \[#*\.*\] .* %' "$tmp/screen" || complain "no bar: $(cat -v "$tmp/screen")"
grep -q "$(printf '\r\033')\[Kperplexity" "$tmp/screen" ||
    complain "the bar stays: $(tail -n 3 "$tmp/screen" | cat -v)"
on_terminal "'$numoe' eval -q --perplexity '$tmp/text' --window 64" </dev/null
grep -q '%' "$tmp/screen" && complain "-q has a bar: $(cat -v "$tmp/screen")"

# The first line goes out only when the prompt is there to be seen.
{ sleep 2; printf '/quit\n'; } | on_terminal "'$numoe' chat" || complain 'status of /quit'
grep -q '^> ' "$tmp/screen" || complain "no prompt: $(cat -v "$tmp/screen")"
{ sleep 2; printf '/reset\n/nonsense\n/quit\n'; } | on_terminal "'$numoe' chat" || complain 'status of /reset'
grep -q 'conversation is forgotten' "$tmp/screen" || complain "/reset: $(cat -v "$tmp/screen")"
grep -q "numoe: there is no '/nonsense', only /reset, /help and /quit" "$tmp/screen" ||
    complain "/nonsense: $(cat -v "$tmp/screen")"

exit $bad
