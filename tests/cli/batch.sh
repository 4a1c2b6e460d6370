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
expect 2 'wrong: line 3: ' "$numoe" batch -q --strict -i "$tmp/wrong" -o "$tmp/strict"
grep -v -e '^not' -e '^{"body' -e again -e both -e hot -e '"n"' -e url -e '"hot"' -e '^$' "$tmp/wrong" >"$tmp/wrong2"
expect 2 'wrong2: line [0-9]: ' "$numoe" batch -q --strict -i "$tmp/wrong2" -o "$tmp/strict"
test ! -s "$tmp/strict" || complain '--strict wrote a result'

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
expect 2 'begun with options' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer" --temp 0.5
expect 2 'begun without --ordered' "$numoe" batch -q -i "$tmp/in" -o "$tmp/fewer" --ordered
expect 2 'begun with model' "$numoe" batch -q -m "$fixture" -i "$tmp/in" -o "$tmp/fewer"
batch -i "$tmp/in" -o "$tmp/fewer" || complain "one more: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/fewer" 'one that was missing'
sed '1s/status_code":200/status_code":999/' "$tmp/all" >"$tmp/forged"
sed '$d' "$tmp/all.journal" >"$tmp/forged.journal"
expect 2 'does not hold the result of line' "$numoe" batch -q -i "$tmp/in" -o "$tmp/forged"

# ---- time
expect 75 'time of the job is over; the same command goes on' "$numoe" batch -q -i "$tmp/in" -o "$tmp/late" --time-left 0:05
SLURM_JOB_END_TIME=$(($(date +%s) + 5)) expect 75 'time of the job' "$numoe" batch -q -i "$tmp/in" -o "$tmp/late"
batch -i "$tmp/in" -o "$tmp/late" --time-left 1-00:00:00 || complain "a day: $(cat "$tmp/err")"
same_set "$tmp/all" "$tmp/late" 'after a job without time'
expect 2 "neither seconds nor" "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --time-left soon
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
