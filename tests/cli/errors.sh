#!/bin/sh
# What a user can get wrong: one clear line on stderr and the documented exit status each time.
. "$(dirname "$0")/lib.sh"

# ---- usage
expect 2 '*' "$numoe"
grep -q 'Usage: numoe SUBCOMMAND' "$tmp/err" || complain "no usage without arguments"
expect 2 "no subcommand 'rum'.*numoe help" "$numoe" rum
expect 2 "no subcommand 'rum'.*numoe help" "$numoe" help rum
expect 2 "unexpected argument 'x'" "$numoe" version x
expect 2 "run: unknown option '--tmep'.*numoe help run" "$numoe" run --tmep 1 -p x
expect 2 "run: unknown option '-x'.*numoe help run" "$numoe" run -x
expect 2 "run: option '-p' needs a value.*numoe help run" "$numoe" run -p
expect 2 "run: option '--seed' needs a value" "$numoe" run --seed
expect 2 "run: option '--quiet=1' takes no value" "$numoe" run --quiet=1 -p x
# names are written out, and what is quoted is what is wrong
expect 2 "run: unknown option '--mode'.*numoe help run" "$numoe" run --mode latency -p x
for command in run chat plan bench 'experts collect'; do
    # shellcheck disable=SC2086
    expect 2 ": unknown option '--mode'" "$numoe" $command --mode=latency
done
expect 2 "eval: unknown option '--perp'" "$numoe" eval --perp "$src/LICENSE"
expect 2 "run: unknown option '--see'" "$numoe" run --see
expect 2 "run: unknown option '--te'" "$numoe" run -p x --te=1
expect 2 "run: unknown option '--qui'" "$numoe" run --qui=1 -p x
expect 2 "topo: unknown option '--jso'" "$numoe" topo --jso
expect 2 "run: unknown option '-x'" "$numoe" run -p --mod=1 -xq
expect 2 "run: unknown option '-x'" "$numoe" run -p --quiet=1 -xq
expect 2 "-c: '--mod' is not a whole number" "$numoe" run -c --mod -q
expect 2 "--seed: '--see' is not a whole number" "$numoe" run --seed --see
expect 0 '' "$numoe" run -p --mod -qn 1 --temp=0
# what the manual page says of one subcommand's options is said by its help as well
for command in run chat plan bench batch eval; do
    case $command in batch | eval) want=0 ;; *) want=1 ;; esac
    "$numoe" help $command | grep -q -e ' --mode '
    test $? -eq $want || complain "help $command: --mode"
done
sed -n '/^.SH COMMON/,/^.SH OPTIONS FOR/p' "$src/docs/numoe.1" |
    grep -Fq '\-\-mode ' &&
    complain 'numoe(1): --mode is common'
expect 2 "unexpected argument 'tale'.*-p" "$numoe" run tale
expect 2 "chat: unknown option '-p'.*numoe help chat" "$numoe" chat -p x
expect 2 "chat: unexpected argument 'x'" "$numoe" chat x
expect 2 "inspect: no file" "$numoe" inspect
expect 2 "inspect: only one file" "$numoe" inspect a b
expect 2 "inspect: unknown option '--tensor_'" "$numoe" inspect --tensor_ x
expect 2 "eval: give either" "$numoe" eval
expect 2 "eval: give either" "$numoe" eval --perplexity a --logits b
expect 2 "eval: --logits needs" "$numoe" eval --logits a
expect 2 "eval: -o and --routes" "$numoe" eval --perplexity a -o b
expect 2 "both give a prompt" "$numoe" run -p x -f y
expect 2 "exclude each other" "$numoe" run -p x --raw --chat
expect 2 "exclude each other" "$numoe" run -p x --raw --chat-template chatml
expect 2 '"nope" is no chat template: name one with --chat-template: a file, or one of chatml, ' \
    "$numoe" run -p x --chat-template nope
expect 2 "$tmp/nope.jinja: No such file" "$numoe" chat --chat-template "$tmp/nope.jinja"
printf '{%% for m in messages %%}\n{%% endif %%}' >"$tmp/bad.jinja"
expect 2 "chat template: line 2: unknown or unexpected tag 'endif'" \
    "$numoe" chat --chat-template "$tmp/bad.jinja"
printf '{{ messages }}\n{{ messages | shuffle }}' >"$tmp/bad.jinja"
expect 3 "chat template: line 2: the filter 'shuffle' is not supported" \
    "$numoe" run -q -p x --chat-template "$tmp/bad.jinja"
# the help lists all the names that there are
"$numoe" run -p x --chat-template nope 2>&1 </dev/null | sed 's/.* one of //; s/, /\n/g' >"$tmp/names"
test "$(wc -l <"$tmp/names")" -gt 5 || complain "templates: $(cat "$tmp/names")"
while read -r name; do
    "$numoe" help run | grep -q "[ ,]$name\(,\|\$\)" || complain "help run does not name $name"
done <"$tmp/names"
for command in run chat eval inspect version help; do
    expect 0 '' "$numoe" help $command
    grep -q "^Usage: numoe $command" "$tmp/out" || complain "help of $command"
done
for command in run chat eval plan topo doctor inspect version help; do
    expect 0 '' "$numoe" $command --help
    grep -q "^Usage: numoe $command" "$tmp/out" || complain "--help of $command"
done
expect 0 '' "$numoe" --help
for name in NUMOE_MODEL NUMOE_LOG NUMOE_ISA; do
    grep -q "^  $name " "$tmp/out" || complain "help does not explain $name"
done
expect 0 '' "$numoe" --version
grep -Eq '^numoe [0-9]+\.[0-9]+\.[0-9]+$' "$tmp/out" || complain "version: $(cat "$tmp/out")"

# ---- numbers
for value in 0 -1 +1 ' 1' 1x 1.5 0x10 '' 99999999999999999999 1000000001; do
    expect 2 "-n: '.*' is not a whole number from 1 to 1000000000" "$numoe" run -p x -n "$value"
done
expect 2 "-c: '0' is not" "$numoe" run -p x -c 0
expect 2 "-t: '5000' is not a whole number from 1 to 4096" "$numoe" run -p x -t 5000
expect 2 "4096 workers on 1 core: at most 64 are possible" "$numoe" run -q -p x -t 4096 \
    --topology 'pack:1 [numa(memory=64GiB)] core:1 pu:1'
expect 2 "--chunk: '70000' is not" "$numoe" run -p x --chunk 70000
expect 2 "--seed: '-1' is not" "$numoe" run -p x --seed -1
expect 2 "--top-k: 'a' is not" "$numoe" run -p x --top-k a
for value in nan inf -0.1 1e9 0x1 ' 1' 1,5 '' e; do
    expect 2 "--temp: '.*' is not a number from 0 to 1000" "$numoe" run -p x --temp "$value"
done
expect 2 "--top-p: '1.1' is not a number from 0 to 1" "$numoe" run -p x --top-p 1.1
expect 2 "--min-p: '2' is not a number from 0 to 1" "$numoe" run -p x --min-p 2
expect 2 "--repeat-penalty: '0' is not a number from 0.01 to 100" "$numoe" run -p x \
    --repeat-penalty 0
expect 2 "--kv: 'q8' is none of" "$numoe" run -p x --kv q8
expect 2 "a window of 512 tokens does not fit a context of 100 [(]-c[)]" \
    "$numoe" eval --perplexity "$src/LICENSE" -c 100
expect 2 "a window of 512 tokens does not fit a context of 100" \
    "$numoe" experts collect -f "$src/LICENSE" -o "$tmp/stats" -c 100
expect 2 "a sequence of 512 tokens does not fit a context of 100" "$numoe" bench -c 100
echo '[1, 2, 3]' >"$tmp/ids"
expect 2 "a sequence of 3 tokens does not fit a context of 2" \
    "$numoe" eval --logits "$tmp/ids" -o "$tmp/x.npy" -c 2
expect 2 "show runs no model" "$numoe" experts show -c 100 "$tmp/ids"
expect 2 "--window: '7' is not" "$numoe" eval --perplexity "$src/LICENSE" --window 7

# ---- files
expect 2 'missing.gguf: .*No such file' "$numoe" run -m "$tmp/missing.gguf" -p x
expect 2 "$tmp" "$numoe" run -m "$tmp" -p x
expect 2 'LICENSE' "$numoe" run -m "$src/LICENSE" -p x
: >"$tmp/empty"
expect 2 'empty' "$numoe" run -m "$tmp/empty" -p x
head -c 600 "$src/tests/data/fable/heldout.txt" >"$tmp/short"
expect 2 'missing.txt: No such file' "$numoe" run -f "$tmp/missing.txt"
expect 2 "$tmp: Is a directory" "$numoe" run -f "$tmp"
expect 2 'missing: .*No such file' "$numoe" inspect "$tmp/missing"
expect 2 'missing.txt: No such file' "$numoe" eval --perplexity "$tmp/missing.txt"
NUMOE_MODEL=$tmp/elsewhere.gguf expect 2 'elsewhere.gguf' "$numoe" run -p x

# without a template nobody needs to type a message first
sed 's/tokenizer\.chat_template/tokenizer.chat_templatX/' "$fixture" >"$tmp/no-template.gguf"
expect 2 "file has no tokenizer.chat_template: name one with --chat-template" \
    "$numoe" chat -q -m "$tmp/no-template.gguf"
expect 2 "file has no tokenizer.chat_template: name one with --chat-template" \
    "$numoe" run -q -m "$tmp/no-template.gguf" --chat -p x

# ---- requests
expect 2 'the prompt is empty' "$numoe" run -p ''
expect 2 'the prompt is empty' "$numoe" run -f "$tmp/empty"
expect 2 'the prompt is empty' "$numoe" run -m "$fixture"
expect 2 '17 tokens do not fit a context of 8: shorten' "$numoe" run -q -c 8 -n 1 \
    -p 'Once upon a time there was a poor miller who had three sons.'
expect 2 'context of 4000 .* 2048' "$numoe" run -q -c 4000 -p x
expect 2 '--stop: the text is empty: give' "$numoe" run -q -p x --stop ''
expect 2 '/empty: a text of 0 bytes is shorter than one window of 512 tokens$' \
    "$numoe" eval --perplexity "$tmp/empty"
expect 2 '[0-9]+ tokens, one window has 512' "$numoe" eval -q --perplexity "$tmp/short"
NUMOE_LOG=loud expect 2 'NUMOE_LOG is "loud", expected error, warn, info or debug' "$numoe" run -q -p x
expect 0 '*' env NUMOE_LOG=debug "$numoe" run -q -n 1 -p x
for line in 'kernels: ' 'machine: ' 'model: .*6 layers' 'placement: ' 'loaded in ' 'KV cache: '; do
    grep -q "^numoe: debug: $line" "$tmp/err" || complain "log: no '$line' in $(cat "$tmp/err")"
done

# ---- what is refused before the weights are read: nothing else is said, also without -q
expect 2 'context of 4000 .* 2048' "$numoe" run -c 4000 -p x
expect 2 'context of 4000 .* 2048' "$numoe" chat -c 4000
head -c 30000 "$src/tests/data/fable/heldout.txt" >"$tmp/long"
expect 2 'context of 4000 .* 2048' "$numoe" eval --perplexity "$tmp/long" --window 4000
echo '[1, 2, 3]' >"$tmp/ids"
expect 2 'nowhere/x.npy: cannot be created' "$numoe" eval --logits "$tmp/ids" -o "$tmp/nowhere/x.npy"
expect 2 'nowhere/x: cannot be created' "$numoe" run -p x --expert-stats-out "$tmp/nowhere/x"
NUMOE_ISA=z80 expect 2 'z80' "$numoe" run -q -p x

# ---- standard output that takes nothing
if test -w /dev/full; then
    for command in help version 'inspect '"$fixture" 'run -q -n 4 -p Once'; do
        # shellcheck disable=SC2086
        "$numoe" $command >/dev/full 2>"$tmp/err" </dev/null
        test $? -eq 1 || complain "$command: status with a full disk"
        grep -q '^numoe: .*\(No space left\|cannot be written\)' "$tmp/err" || complain "$command: $(cat "$tmp/err")"
        test "$(wc -l <"$tmp/err")" -eq 1 || complain "$command: not one line"
    done
fi
"$numoe" run -q -n 4 -p Once >&- 2>"$tmp/err" </dev/null
test $? -eq 1 || complain "closed stdout: status"
grep -q '^numoe: standard output: ' "$tmp/err" || complain "closed stdout: $(cat "$tmp/err")"

exit $bad
