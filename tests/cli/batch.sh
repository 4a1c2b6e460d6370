#!/bin/sh
# numoe batch: the form of results, what is wrong with requests, parts, order, and who may write what.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/batch-lib.sh"

batch() { "$numoe" batch -q "$@" 2>"$tmp/err" </dev/null; }
# has PATTERN COUNT FILE
has() { test "$(grep -Ec "$1" "$3")" -eq "$2" || complain "not $2 times '$1': $(cat "$3")"; }

make_requests 12 >"$tmp/in"
batch -i "$tmp/in" -o "$tmp/all" || complain "status $?: $(cat "$tmp/err")"
test -s "$tmp/err" && complain "-q says $(cat "$tmp/err")"
has '^\{"id":"batch_req_[0-9]+","custom_id":"r[0-9]+","response":\{"status_code":200,.*"error":null\}$' 12 "$tmp/all"
has '"object":"chat.completion","created":0,.*"message":\{"role":"assistant","content":"' 3 "$tmp/all"
has '"object":"text_completion",.*"text":"' 9 "$tmp/all"
has '"finish_reason":"(stop|length)"' 12 "$tmp/all"

# ---- a result is what the same prompt gives alone
grep '"r5"' "$tmp/in" | sed 's/.*"prompt": "\(.*\)"}}/\1/' >"$tmp/prompt"
n=$(grep '"r5"' "$tmp/in" | sed 's/.*"max_tokens": \([0-9]*\).*/\1/')
"$numoe" run -q --temp 0 -n "$n" -f "$tmp/prompt" >"$tmp/alone" </dev/null
# the same escapes as in JSON, no newline at the end
awk '{ gsub(/"/, "\\\""); printf "%s%s", sep, $0; sep = "\\n" }' "$tmp/alone" >"$tmp/want"
grep -F "\"text\":\"$(cat "$tmp/want")\"" "$tmp/all" | grep -q '"r5"' ||
    complain "alone: $(cat "$tmp/want"); in a batch: $(grep '"r5"' "$tmp/all")"

# ---- done is done; ordered; in parts; few at a time; with little memory
expect 0 '' "$numoe" batch -q -i "$tmp/in" -o "$tmp/all"
expect 0 'all 12 requests have a result already' "$numoe" batch -i "$tmp/in" -o "$tmp/all"
batch -i "$tmp/in" -o "$tmp/ordered" --ordered --max-seqs 5 || complain "ordered: $(cat "$tmp/err")"
sed 's/.*"custom_id":"\([^"]*\)".*/\1/' "$tmp/ordered" >"$tmp/ids"
seq -f r%.0f 0 11 | cmp -s - "$tmp/ids" || complain "not in order: $(cat "$tmp/ids")"
same_set "$tmp/all" "$tmp/ordered" ordered
test -e "$tmp/ordered.part" && complain 'an ordered job left its part'
expect 0 'have a result already' "$numoe" batch -i "$tmp/in" -o "$tmp/ordered" --ordered
for k in 0 1; do
    batch -i "$tmp/in" -o "$tmp/shard$k" --shard $k/2 --kv-memory 1MB --chunk 16 ||
        complain "part $k: $(cat "$tmp/err")"
done
cat "$tmp/shard0" "$tmp/shard1" >"$tmp/shards"
same_set "$tmp/all" "$tmp/shards" 'two parts'

# ---- two nodes, each with requests of its own, or together
for mode in auto throughput latency; do
    batch -i "$tmp/in" -o "$tmp/$mode" --topology 'pack:2 [numa(memory=64GiB)] core:1 pu:1' \
        --mode $mode || complain "$mode: $(cat "$tmp/err")"
    same_set "$tmp/all" "$tmp/$mode" "mode $mode"
done
expect 2 'take the placement replicate' "$numoe" batch -q -i "$tmp/in" -o "$tmp/cut" \
    --topology 'pack:2 [numa(memory=64GiB)] core:1 pu:1' --placement slice --mode throughput

# ---- wrong lines have errors, the others results
cat >"$tmp/wrong" <<'END'
{"custom_id": "good", "body": {"prompt": "The fox", "max_tokens": 3, "logprobs": 2}}

not json
{"body": {"prompt": "x"}}
{"custom_id": "good", "body": {"prompt": "again"}}
{"custom_id": "both", "body": {"prompt": "x", "messages": []}}
{"custom_id": "hot", "body": {"prompt": "x", "temperature": "hot"}}
{"custom_id": "n", "body": {"prompt": "x", "n": 2}}
{"custom_id": "url", "url": "/v1/embeddings", "body": {"prompt": "x"}}
{"custom_id": "empty", "body": {"prompt": []}}
{"custom_id": "id", "body": {"prompt": [5, 99999]}}
{"custom_id": "ids", "body": {"prompt": [0, 88, 83], "max_tokens": 2}}
{"custom_id": "chat", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": true, "top_logprobs": 1}}
{"custom_id": "role", "body": {"messages": 3}}
END
batch -i "$tmp/wrong" -o "$tmp/out1" || complain "wrong lines: status $?: $(cat "$tmp/err")"
has '"status_code":200' 3 "$tmp/out1"
has '"status_code":400,.*"error":\{"message":"[^"]+","type":"invalid_request_error"' 10 "$tmp/out1"
has '"custom_id":null,.*line 3 is not JSON' 1 "$tmp/out1"
has '"custom_id":"good",.*custom_id is that of line 1' 1 "$tmp/out1"
has '"custom_id":"both",.*both messages and prompt' 1 "$tmp/out1"
has '"custom_id":"hot",.*temperature is no number from 0 to' 1 "$tmp/out1"
has '"custom_id":"id",.*id 99999' 1 "$tmp/out1"
has '"custom_id":"good",.*"token_logprobs":\[-[0-9.]+,-[0-9.]+,-[0-9.]+\]' 1 "$tmp/out1"
has '"custom_id":"chat",.*"logprobs":\{"content":\[\{"token":"[^"]+","logprob":-' 1 "$tmp/out1"

# ---- --strict: all of them at once, what only the model can tell second
strict() { # FILE COUNT: so many lines of errors, status 2
    batch --strict -i "$tmp/$1" -o "$tmp/strict"
    test $? -eq 2 || complain "strict: status: $(cat "$tmp/err")"
    test "$(grep -Ec "^numoe: .*/$1: (line [0-9]+[ :]|and )" "$tmp/err")" -eq "$2" || complain "strict: $(cat "$tmp/err")"
    test "$(wc -l <"$tmp/err")" -eq "$2" || complain "strict, lines: $(cat "$tmp/err")"
}
strict wrong 7
has '/wrong: line 3 is not JSON: ' 1 "$tmp/err"
has '/wrong: line 5: custom_id is that of line 1$' 1 "$tmp/err"
has '/wrong: line 7: temperature is no number' 1 "$tmp/err"
grep -v -e '^not' -e '^{"body' -e again -e both -e hot -e '"n"' -e url -e '"hot"' -e '^$' "$tmp/wrong" >"$tmp/wrong2"
strict wrong2 3
has '/wrong2: line 2: .*(empty|no token)' 1 "$tmp/err"
has '/wrong2: line 3: .*id 99999' 1 "$tmp/err"
has '/wrong2: line 6: messages' 1 "$tmp/err"
for i in $(seq 14); do echo "{\"custom_id\": \"$i\", \"body\": {\"prompt\": []}}"; done >"$tmp/wrong3"
strict wrong3 11
has '/wrong3: line 10: ' 1 "$tmp/err"
has '/wrong3: and 4 more$' 1 "$tmp/err"
for i in $(seq 11); do echo '{"body": {"prompt": "x"}}'; done >"$tmp/wrong4"
strict wrong4 11
has '/wrong4: and 1 more$' 1 "$tmp/err"
test -e "$tmp/strict" -o -e "$tmp/strict.journal" && complain '--strict has begun a job of wrong requests'
batch --strict -i "$tmp/in" -o "$tmp/strict" || complain "strict, nothing wrong: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/strict" 'strict'

# ---- what would change the answer and is not known is not ignored, of whatever type; zeros are no blank line
{
    printf '\357\273\277{"custom_id": "mark", "body": {"prompt": "x", "max_tokens": 1}}\r\n'
    i=0
    for member in '"logit_bias": "x"' '"presence_penalty": "0.5"' '"frequency_penalty": true' \
        '"response_format": "json"' '"response_format": []' '"tool_choice": "required"' '"suffix": "x"' \
        '"min_tokens": 5' '"stop_token_ids": [5]' '"guided_json": {"type": "object"}' '"chat_template_kwargs": 3'; do
        i=$((i + 1))
        echo "{\"custom_id\": \"m$i\", \"body\": {\"prompt\": \"x\", $member}}"
    done
    printf '\0\0\0\n'
    printf '%s\n' '{"custom_id": "a\u0000b", "body": {"prompt": "x"}}'
    echo '{"custom_id": "none", "body": {"prompt": "x", "max_tokens": 1, "min_tokens": 0, "stop_token_ids": [],' \
        '"suffix": "", "logit_bias": {}, "tool_choice": "auto", "response_format": {"type": "text"}, "presence_penalty": 0}}'
} >"$tmp/members"
batch -i "$tmp/members" -o "$tmp/out2" || complain "members: status $?: $(cat "$tmp/err")"
has '"custom_id":"(mark|none)",.*"status_code":200' 2 "$tmp/out2"
has '"custom_id":"m[0-9]+",.*"status_code":400,.*(is not supported|is no object)' 11 "$tmp/out2"
has '"custom_id":null,.*line 13 is not JSON' 1 "$tmp/out2"
has '"custom_id":null,.*line 14 has a custom_id with a zero byte' 1 "$tmp/out2"

# ---- contents in parts, as clients of OpenAI send them
{
    printf '%s\n' '{"custom_id": "text", "body": {"messages": [{"role": "user", "content": "Tell me\na story."}], "max_tokens": 9, "seed": 1}}'
    echo '{"custom_id": "parts", "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Tell me"},' \
        '{"type": "text", "text": "a story."}]}], "max_tokens": 9, "seed": 1}}'
    echo '{"custom_id": "image", "body": {"messages": [{"role": "user", "content": [{"type": "image_url",' \
        '"image_url": {"url": "data:"}}]}]}}'
} >"$tmp/parts"
batch -i "$tmp/parts" -o "$tmp/out3" || complain "parts: status $?: $(cat "$tmp/err")"
has '"custom_id":"image",.*"status_code":400,.*content part 0 has the type .*image_url.*: only' 1 "$tmp/out3"
has '"custom_id":"(text|parts)",.*"status_code":200' 2 "$tmp/out3"
test "$(grep -E '"(text|parts)"' "$tmp/out3" | sed 's/.*"choices"://' | sort -u | wc -l)" -eq 1 || complain "parts: $(cat "$tmp/out3")"

# ---- files that are not those of this job
expect 2 'no regular file' "$numoe" batch -q -i "$tmp/in" -o /dev/null
expect 2 'no regular file' "$numoe" batch -q -i /dev/null -o "$tmp/x"
expect 2 'is the file of -i too' "$numoe" batch -q -i "$tmp/in" -o "$tmp/in"
expect 2 '-o is missing' "$numoe" batch -q -i "$tmp/in"
echo mine >"$tmp/mine"
expect 2 'mine: is there already, and no journal' "$numoe" batch -q -i "$tmp/in" -o "$tmp/mine"
test "$(cat "$tmp/mine")" = mine || complain 'a file of somebody else was changed'
test -e "$tmp/mine.journal" && complain 'a journal of nothing'
expect 2 'in: has changed|wrong: has changed' "$numoe" batch -q -i "$tmp/wrong" -o "$tmp/all"
cp "$tmp/all" "$tmp/fewer" && sed '$d' "$tmp/all.journal" >"$tmp/fewer.journal"
cp "$tmp/all" "$tmp/whole"
for results in all fewer; do # a job that is done, and one that is not
    printf '{"torn' >>"$tmp/$results" && cp "$tmp/$results" "$tmp/before"
    other() { # PATTERN OPTION...
        pattern=$1 && shift
        expect 2 "$pattern: go on as it began, or give another -o$" "$numoe" batch -q -i "$tmp/in" -o "$tmp/$results" "$@"
    }
    other "/$results: the job was begun with seed 0, now it is 5" --seed 5
    other 'begun with temperature 0.7, now it is 0.5, seed 0, now it is 5' --temp 0.5 --seed 5
    other 'begun with defer 0, now it is 1' --defer 1
    other 'begun with tokens 512, now it is 7' -n 7
    other 'begun with another chat template' --chat-template chatml
    other '(begun with|,) model bytes [0-9]+, now it is [0-9]+' -m "$fixture"
    cmp -s "$tmp/before" "$tmp/$results" || complain "$results: a command that was refused has changed it"
done
batch -i "$tmp/in" -o "$tmp/all" || complain "a job that is done: $(cat "$tmp/err")"
cmp -s "$tmp/whole" "$tmp/all" || complain 'what follows the last result was not cut off'
cp "$tmp/all" "$tmp/fewer" && sed '1s/,"defer":0//' "$tmp/all.journal" >"$tmp/fewer.journal"
grep -q defer "$tmp/fewer.journal" && complain "a journal with defer: $(head -n 1 "$tmp/fewer.journal")"
expect 0 'have a result already' "$numoe" batch -i "$tmp/in" -o "$tmp/fewer"
expect 2 'begun with defer 0, now it is 2' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer" --defer 2
sed '$d' "$tmp/all.journal" | sed '1s/"kernels":"[a-z0-9]*"/"kernels":"other"/' >"$tmp/fewer.journal"
expect 0 'began with kernels "other", now it is "' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer"
sed '$d' "$tmp/all.journal" | sed '1s/"name":"[^"]*"/"name":"other"/' >"$tmp/fewer.journal"
expect 2 'begun with model name "other", now it is "[^,]*: go on' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer"
cp "$tmp/all" "$tmp/fewer" && sed '$d' "$tmp/all.journal" >"$tmp/fewer.journal"
expect 2 'begun without --ordered' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer" --ordered
batch -i "$tmp/in" -o "$tmp/fewer" || complain "one more: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/fewer" 'one that was missing'
sed '1s/status_code":200/status_code":999/' "$tmp/all" >"$tmp/forged"
sed '$d' "$tmp/all.journal" >"$tmp/forged.journal"
expect 2 'does not hold the result of line' "$numoe" batch -q -i "$tmp/in" -o "$tmp/forged"

# ---- a journal that is somebody else's, or damaged: said, and nothing is touched
for text in 'mine, without a newline' '{"mine": 1}
and more'; do
    printf %s "$text" >"$tmp/new.journal"
    expect 2 'new.journal: is no journal of numoe batch' "$numoe" batch -q -i "$tmp/in" -o "$tmp/new"
    test "$(cat "$tmp/new.journal")" = "$text" || complain "changed: $(cat "$tmp/new.journal")"
    test -e "$tmp/new" && complain 'results of nothing'
done
printf '{"numoe":"batch' >"$tmp/new.journal"
batch -i "$tmp/in" -o "$tmp/new" || complain "a torn first line: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/new" 'a torn first line'
damage() { # PATTERN: status 2, and the results are as they were
    cp "$tmp/all" "$tmp/damaged"
    expect 2 "$1" "$numoe" batch -q -i "$tmp/in" -o "$tmp/damaged"
    same "$tmp/all" "$tmp/damaged" "$1"
}
awk 'NR < 3; NR == 2 { print $1 + 1, $3, "18446744073709551615", $4 }' "$tmp/all.journal" >"$tmp/damaged.journal"
damage 'damaged.journal: line 3 is damaged'
{ cat "$tmp/all.journal" && echo ordered; } >"$tmp/damaged.journal"
damage 'damaged.journal: line 14 is damaged'
sed '$d' "$tmp/ordered" >"$tmp/shorter" && cp "$tmp/ordered.journal" "$tmp/shorter.journal"
expect 2 'shorter: does not hold the result of line 12' "$numoe" batch -q -i "$tmp/in" -o "$tmp/shorter" --ordered
mkfifo "$tmp/fifo"
expect 2 'fifo: is no regular file' timeout 20 "$numoe" batch -q -i "$tmp/fifo" -o "$tmp/x"
expect 2 "'': cannot be written" "$numoe" batch -q -i "$tmp/in" -o ''

# ---- a link to where results are to be: the same job by either name, from the beginning
ln -s behind "$tmp/link"
batch -i "$tmp/in" -o "$tmp/link" || complain "a link: $(cat "$tmp/err")"
sed -i '$d' "$tmp/behind.journal"
batch -i "$tmp/in" -o "$tmp/link" || complain "a link again: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/behind" 'a link'

# ---- in order and not, at one time, before either has a journal's first line
flock "$tmp/both.journal" "$numoe" batch -q -i "$tmp/in" -o "$tmp/both" 2>"$tmp/err" && complain 'both at one time'
grep -q 'both.journal: another job is writing' "$tmp/err" || complain "both: $(cat "$tmp/err")"
test -e "$tmp/both" && complain 'results of a job that did not begin'

# ---- a signal before there is anything to answer
awk 'BEGIN { for (; i < 20000; i++) printf "{\"custom_id\": \"%d\", \"body\": {\"prompt\": \"x\"}}\n", i }' >"$tmp/lots"
(exec "$numoe" batch -q -i "$tmp/lots" -o "$tmp/early" 2>"$tmp/err" </dev/null) &
pid=$!
wait_until 10 test -e "$tmp/early.journal"
kill -TERM $pid
wait $pid
test $? -eq 75 || complain "status $? after an early signal: $(cat "$tmp/err")"
grep -Eq '^numoe: stopped' "$tmp/err" || complain "an early signal: $(cat "$tmp/err")"

# ---- nobody reads the progress any more: the job goes on
(
    "$numoe" batch -i "$tmp/in" -o "$tmp/unread" 2>&1
    echo $? >"$tmp/unread.status"
) </dev/null | true
test "$(cat "$tmp/unread.status")" = 0 || complain "unread: status $(cat "$tmp/unread.status")"
same_set "$tmp/all" "$tmp/unread" 'unread'

# ---- stopped at work: what is thrown away is told, and it is what was generated and is in no result
make_requests 120 >"$tmp/many"
("$numoe" batch --sync 0 --max-seqs 16 -i "$tmp/many" -o "$tmp/stopped" 2>"$tmp/err" </dev/null & echo $! >"$tmp/pid"; wait $!; echo $? >"$tmp/status") &
wait_until 10 test -s "$tmp/stopped"
kill -TERM "$(cat "$tmp/pid")"
kill -TERM "$(cat "$tmp/pid")" # as timeout does, and srun may: that is no second request
wait $!
test "$(cat "$tmp/status")" -eq 75 || complain "stopped: status $(cat "$tmp/status"): $(cat "$tmp/err")"
made=$(sed -n 's/^generated *\([0-9]*\) tokens.*/\1/p' "$tmp/err")
kept=$(sed 's/.*"completion_tokens":\([0-9]*\).*/\1/' "$tmp/stopped" | awk '{ n += $1 } END { print n + 0 }')
test "$((made - kept))" -gt 0 || complain "$made tokens, $kept kept"
has "^numoe: stopped: Terminated; the same command goes on; tokens of unfinished answers thrown away, to be made again: $((made - kept))\$" 1 "$tmp/err"

# ---- time
expect 75 'time of the job is over, and no request was finished: the same command would end the same way; give .* --max-seqs; .* away: 0$' "$numoe" batch -q -i "$tmp/in" -o "$tmp/late" --time-left 0:05
SLURM_JOB_END_TIME=$(($(date +%s) + 5)) expect 75 'time of the job' "$numoe" batch -q -i "$tmp/in" -o "$tmp/late"
batch -i "$tmp/in" -o "$tmp/late" --time-left 1-00:00:00 || complain "a day: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/late" 'after a job without time'
for time in soon -5 ' 5' 99999999999999999999 1:-2 1-2 :1 1:2:3:4; do
    expect 2 "neither seconds nor" "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --time-left "$time"
done
PBS_WALLTIME=4:00:00 expect 0 'PBS_WALLTIME is "4:00:00", expected seconds' "$numoe" batch -q -i "$tmp/in" -o "$tmp/all"
expect 2 "is not K/N" "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --shard 1

# ---- the job script for PBS, with a qsub that notes what it is asked
mkdir "$tmp/bin"
printf '#!/bin/sh\necho "$@" >>"%s/qsub"\n' "$tmp" >"$tmp/bin/qsub"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$numoe" >"$tmp/bin/numoe"
chmod +x "$tmp/bin/qsub" "$tmp/bin/numoe"
for time in 0:05 0:40; do
    sed -e "s|^MODEL=.*|MODEL=$NUMOE_MODEL|" -e "s|^REQUESTS=.*|REQUESTS=in|" -e "s|^TIME=.*|TIME=$time|" \
        "$src/docs/hpc/one-node.pbs" >"$tmp/one-node.pbs"
    PATH=$tmp/bin:$PATH PBS_JOBID=7.host PBS_O_WORKDIR=$tmp bash "$tmp/one-node.pbs" >"$tmp/pbs-$time" 2>&1 </dev/null
    echo $? >>"$tmp/pbs-statuses"
done
test "$(tr '\n' ' ' <"$tmp/pbs-statuses")" = '75 0 ' || complain "PBS: $(cat "$tmp"/pbs-*)"
test "$(cat "$tmp/qsub")" = '-W depend=afterany:7.host one-node.pbs' || complain "qsub: $(cat "$tmp/qsub")"
same_set "$tmp/all" "$tmp/results.jsonl" 'of the PBS script'

exit $bad
