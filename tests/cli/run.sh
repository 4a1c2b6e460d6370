#!/bin/sh
# numoe run: text to stdout and nothing else, the same whatever the number of workers, and where a
# prompt can come from.
. "$(dirname "$0")/lib.sh"

prompt='Once upon a time there was a poor miller who had three sons.'
greedy="--temp 0 --repeat-penalty 1 -n 24"

# shellcheck disable=SC2086
tell() { "$numoe" run -q $greedy "$@" 2>"$tmp/err"; }

tell -p "$prompt" -t 1 >"$tmp/one" </dev/null || complain "run: $(cat "$tmp/err")"
test -s "$tmp/err" && complain "-q is not quiet: $(cat "$tmp/err")"
test "$(wc -c <"$tmp/one")" -gt 40 || complain "too little text: $(cat "$tmp/one")"
test "$(tail -c 1 "$tmp/one")" = '' || complain "the last line is not ended"
for threads in 2 3; do
    tell -p "$prompt" -t $threads >"$tmp/more" 2>/dev/null </dev/null
    same "$tmp/one" "$tmp/more" "$threads workers"
done
for chunk in 1 7; do
    tell -p "$prompt" --chunk $chunk >"$tmp/more" </dev/null
    same "$tmp/one" "$tmp/more" "chunks of $chunk"
done

# ---- where the prompt comes from
printf '%s' "$prompt" | tell >"$tmp/more"
same "$tmp/one" "$tmp/more" 'prompt from stdin'
echo "$prompt" | tell >"$tmp/more"
same "$tmp/one" "$tmp/more" 'prompt from stdin, with a newline'
echo "$prompt" | tell -f - >"$tmp/more"
same "$tmp/one" "$tmp/more" 'prompt from -f -'
echo "$prompt" >"$tmp/prompt"
tell -f "$tmp/prompt" >"$tmp/more" </dev/null
same "$tmp/one" "$tmp/more" 'prompt from a file'

# ---- the chat form is what its special tokens say
tell --chat -p 'Tell me a story about a fox and a crow.' >"$tmp/chat" </dev/null
tell -p '<｜User｜>Tell me a story about a fox and a crow.<｜Assistant｜>' >"$tmp/raw" </dev/null
same "$tmp/chat" "$tmp/raw" 'chat form'
cmp -s "$tmp/chat" "$tmp/one" && complain 'chat form and plain text are equal'

# ---- another chat template, which says what the form is: a file, or a name
printf '%s\n' '{{ bos_token }}{% for m in messages %}<｜{{ m.role | capitalize }}｜>{{ m.content }}{% endfor %}<｜Assistant｜>' \
    >"$tmp/template.jinja"
tell --chat-template "$tmp/template.jinja" -p 'Tell me a story about a fox and a crow.' \
    >"$tmp/more" </dev/null
same "$tmp/chat" "$tmp/more" 'chat template from a file'
tell --chat-template deepseek-v2 -p 'Tell me a story.' >"$tmp/chat" </dev/null
printf 'User: Tell me a story.\n\nAssistant:' >"$tmp/prompt"
tell -f "$tmp/prompt" >"$tmp/raw" </dev/null
same "$tmp/chat" "$tmp/raw" 'built-in chat template'

# ---- stop strings
word=$(cut -d ' ' -f 4 "$tmp/one")
tell -p "$prompt" --stop nowhere --stop "$word" >"$tmp/more" </dev/null
printf '%s\n' "$(sed "s/$word.*//;q" "$tmp/one" | tr -d '\n')" >"$tmp/expected"
printf '%s\n' "$(cat "$tmp/more")" >"$tmp/more.line"
same "$tmp/expected" "$tmp/more.line" "stop at '$word'"

# ---- seeds
for seed in 1 1 2; do
    "$numoe" run -q --seed $seed -n 24 -p "$prompt" >"$tmp/seed$seed.new" </dev/null
    test -f "$tmp/seed$seed" && same "$tmp/seed$seed" "$tmp/seed$seed.new" "seed $seed again"
    mv "$tmp/seed$seed.new" "$tmp/seed$seed"
done
cmp -s "$tmp/seed1" "$tmp/seed2" && complain 'two seeds, one story'

# ---- what is said beside the text
"$numoe" run -n 8 -p "$prompt" >"$tmp/out" 2>"$tmp/err" </dev/null
for line in '^machine    .' '^model      fable-moe: deepseek2, 6 layers, 4 of 32 experts' \
    '^placement  .' '^compute    ' '^sampling   temperature 0.7, top-p 0.9, seed [0-9]' \
    '^prompt     17 tokens in .* tokens/s$' '^generated  8 tokens in .*, as many as asked for$' \
    '^memory     .* GB/s of weights, .* %' '^load       .* s$'; do
    grep -Eq "$line" "$tmp/err" || complain "no '$line' in: $(cat "$tmp/err")"
done
grep -q "$(printf '\033')" "$tmp/err" "$tmp/out" && complain 'control sequences without a terminal'
grep -q "$(printf '\r')" "$tmp/err" && complain 'a bar without a terminal'

# ---- a job's share of a machine that its site does not confine; a task bound to less than that is told
SLURM_CPUS_ON_NODE=1 "$numoe" run -n 1 -p x 2>"$tmp/err" >"$tmp/out" </dev/null
grep -Eq '^placement .* 1 worker$' "$tmp/err" || complain "one CPU of the job: $(cat "$tmp/err")"
SLURM_CPUS_ON_NODE=64 SLURM_STEP_TASKS_PER_NODE=2 taskset -c "$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')" \
    "$numoe" run -q -n 1 -p x 2>"$tmp/err" >"$tmp/out" </dev/null
grep -q '^numoe: bound to 1 of the 32 CPUs .*--cpu-bind=none' "$tmp/err" || complain "bound: $(cat "$tmp/err")"
SLURM_CPUS_ON_NODE=1 expect 0 '' "$numoe" run -q -n 1 -p x

# ---- the bundled model has something to tell without being asked, found without NUMOE_MODEL
(unset NUMOE_MODEL && "$numoe" run -n 8 >"$tmp/out" 2>"$tmp/err" </dev/null) ||
    complain "the default story: $(cat "$tmp/err")"
test -s "$tmp/out" || complain 'no default story'
grep -q 'repetition penalty 1.05' "$tmp/err" || complain "defaults of the bundled model"
grep -q '^prompt     Tell me a story about a fox and a crow\.$' "$tmp/err" || complain 'prompt in the table'

exit $bad
