#!/bin/sh
# numoe batch on several ranks of one machine: the results are those of one process, whoever is
# killed. BATCH_REQUESTS and BATCH_KILLS make it longer (make check-batch); moments are BATCH_SEED's.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/batch-lib.sh"

n_request=${BATCH_REQUESTS:-24} n_kill=${BATCH_KILLS:-4} seed=${BATCH_SEED:-$$}
if ! built_with_mpi "${NUMOE_TEST_BUILDDIR:-.}"; then
    OMPI_COMM_WORLD_SIZE=2 expect 3 'built without MPI \(configure --with-mpi\)' "$numoe" batch -q -i x -o "$tmp/x"
    OMPI_COMM_WORLD_SIZE=2 expect 2 'x: No such file' "$numoe" batch -q -i x -o "$tmp/x" --shard 1/2
    test $bad -eq 0 || exit 1
    echo 'not built with MPI' && exit 77
fi
command -v mpirun >/dev/null || { echo 'no mpirun' && exit 77; }

# Containers may forbid the one, sandboxes have no network for the other; both are a matter of speed.
OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader OMPI_MCA_plm=isolated
OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_btl OMPI_MCA_plm OMPI_MCA_mpi_yield_when_idle \
    OMPI_MCA_rmaps_base_oversubscribe OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
ulimit -c 0

# ranks N OPTION...: a batch of so many.
ranks() { n=$1 && shift && mpirun -n "$n" "$numoe" batch "$@" >"$tmp/log" 2>&1 </dev/null; }
says() { grep -Eq "$1" "$tmp/log" || complain "not said: $1: $(cat "$tmp/log")"; }
lines() { wc -l <"$1"; }

make_requests "$n_request" >"$tmp/in"
echo '{"custom_id": "wrong", "body": {"prompt": "x", "n": 2}}' >>"$tmp/in"
n_line=$((n_request + 1))
start=$(date +%s%N)
"$numoe" batch -q -i "$tmp/in" -o "$tmp/want" --ordered </dev/null || complain "status $? when alone"
ms=$((($(date +%s%N) - start) / 1000000 + 300))

# ---- as one process
for n in 1 2 4; do
    ranks $n -i "$tmp/in" -o "$tmp/out$n" || complain "$n ranks: status $?: $(cat "$tmp/log")"
    same_set "$tmp/want" "$tmp/out$n" "$n ranks"
    says "^numoe: $n_line of $n_line requests have a result, 1 new"
done
says '^ranks +4 on 1 machine'
test "$(grep -c '^machine ' "$tmp/log")" -eq 1 || complain "more than one rank reports: $(cat "$tmp/log")"
ranks 2 -q -i "$tmp/in" -o "$tmp/ordered" --ordered || complain "ordered: $(cat "$tmp/log")"
same "$tmp/want" "$tmp/ordered" 'two ranks, ordered'
ranks 2 -i "$tmp/in" -o "$tmp/out2" || complain "again: status $?"
says "all $n_line requests have a result already"
"$numoe" batch -q -i "$tmp/in" -o "$tmp/out2" </dev/null || complain 'one process after two'

# ---- CPUs that all may use are divided, whole nodes where there are as many
for n in 2 4; do
    mpirun -n $n --bind-to none "$numoe" batch -i "$tmp/in" -o "$tmp/part$n" --max-seqs 4 \
        --topology 'pack:2 [numa(memory=64GiB)] core:2 pu:1' >"$tmp/log" 2>&1 || complain "parts: $(cat "$tmp/log")"
    says "^ranks +$n on 1 machine, not bound: $n may use the same "
    same_set "$tmp/want" "$tmp/part$n" "$n parts of a machine"
    test $n -eq 4 || says '; part 1 of 2: 1 node, 2 cores$'
done
says '; part 1 of 4: 1 node, 1 core$'

# ---- experts spread over ranks: the same bits, whatever the nodes of a rank have
spread() { n=$1 && shift && ranks "$n" "$@" --expert-parallel; }
for n in 2 4; do
    spread $n -i "$tmp/in" -o "$tmp/spread$n" || complain "$n ranks with parts: status $?: $(cat "$tmp/log")"
    says "^ranks +$n on 1 machine, each with a part of the experts"
    same_set "$tmp/want" "$tmp/spread$n" "$n ranks with parts of the experts"
done
for placement in slice shard; do
    spread 2 -i "$tmp/in" -o "$tmp/$placement" --placement $placement --chunk 16 --kv-memory 1MB \
        --topology 'pack:4 [numa(memory=64GiB)] core:1 pu:1' || complain "$placement: $(cat "$tmp/log")"
    same_set "$tmp/want" "$tmp/$placement" "parts of the experts, $placement"
done
head -n 1 "$tmp/in" >"$tmp/one"
spread 4 -q -i "$tmp/one" -o "$tmp/one.out" --ordered || complain "one request for four: $(cat "$tmp/log")"
head -n 1 "$tmp/want" >"$tmp/one.want"
same "$tmp/one.want" "$tmp/one.out" 'one request for four ranks'

# ---- and what is not possible with that: said, and all end
expect 2 '--expert-parallel: this process is alone' "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --expert-parallel
for option in --mmap '--gpu emu'; do
    # shellcheck disable=SC2086 # words
    spread 2 -q -i "$tmp/in" -o "$tmp/x" $option
    test $? -eq 2 || complain "$option: $(cat "$tmp/log")"
    says "\\${option%% *}\\) and experts spread over processes \\(--expert-parallel\\): only one of both is possible"
done
one_other() { # NAME=VALUE PATTERN STATUS: it is only rank 1's
    timeout 60 mpirun -n 1 "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --expert-parallel : -n 1 -x "$1" \
        "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --expert-parallel >"$tmp/log" 2>&1
    test $? -eq "$3" || complain "$1: not status $3: $(cat "$tmp/log")"
    says "$2"
}
"$numoe" run -n 1 -p x 2>&1 | grep -q '^compute *ref ' ||
    one_other NUMOE_ISA=ref 'rank 1 computes with other kernels than rank 0' 3
one_other NUMOE_PAGES=none '^numoe: rank 1: .*NUMOE_PAGES' 2

# ---- what is wrong is said once, by whom, with the status of one process
ranks 2 -q -i "$tmp/in" -o "$tmp/strict" --strict && complain '--strict went on'
test "$(grep -c '^numoe: ' "$tmp/log")" -eq 1 || complain "not one line: $(cat "$tmp/log")"
says '^numoe: rank 0: .*in: line [0-9]+: '
ranks 2 -q -i "$tmp/in" -o "$tmp/none" -m "$tmp/none.gguf"
test $? -eq 2 || complain "no model: $(cat "$tmp/log")"
says '^numoe: rank 0: .*none.gguf: cannot be opened'
test "$(grep -c '^numoe: ' "$tmp/log")" -eq 1 || complain "not one line: $(cat "$tmp/log")"
mpirun -n 1 "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" : -n 1 "$numoe" batch -q -i "$tmp/in" -o "$tmp/x" --temp 0 \
    >"$tmp/log" 2>&1
test $? -eq 2 || complain "different options: $(cat "$tmp/log")"
says '^numoe: rank 0: rank 1 was given other options'
mpirun -n 1 "$numoe" batch -q -i "$tmp/in" -o "$tmp/s0" --shard 0/2 : -n 1 "$numoe" batch -q -i "$tmp/in" -o \
    "$tmp/s1" --shard 1/2 >"$tmp/log" 2>&1 || complain "parts are jobs of their own: $(cat "$tmp/log")"
cat "$tmp/s0" "$tmp/s1" >"$tmp/shards"
same_set "$tmp/want" "$tmp/shards" 'parts'
NUMOE_PEER_PATIENCE=soon ranks 2 -q -i "$tmp/in" -o "$tmp/x"
test $? -eq 2 || complain "patience: $(cat "$tmp/log")"
says 'NUMOE_PEER_PATIENCE is "soon", expected seconds'

# ---- a full disk, whoever computed what does not fit, and who waits for whom: status 1, and it goes on
for size in 4096 8192; do
    on_full_disk $size 'rank 0: ' timeout 50 mpirun -n 2 "$numoe" batch -q --sync 0 --expert-parallel
done

# ---- time
ranks 2 -q -i "$tmp/in" -o "$tmp/late" --time-left 5
test $? -eq 75 || complain "time: $(cat "$tmp/log")"
says '^numoe: rank 0: stopped: the time of the job is over, and no request was finished: '

# ---- killed at random moments: mpirun, told or not, and a rank of it
# rank_pid MPIRUN RANK: its process, or nothing.
rank_pid()
{
    for stat in /proc/[0-9]*/stat; do
        pid=${stat%/stat} && pid=${pid#/proc/}
        parent=$(sed 's/.*) . //; s/ .*//' "$stat" 2>/dev/null)
        if test "$parent" = "$1" && tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null |
            grep -q "^OMPI_COMM_WORLD_RANK=$2\$"; then
            echo "$pid"
        fi
    done
}

n_hit=0 begun_with=$seed
for i in $(seq "$n_kill"); do
    test $((i % 4)) -eq 1 && rm -f "$tmp/killed" "$tmp/killed".*
    if test $((i % 2)) -eq 0; then option=--expert-parallel; else option=; fi
    # shellcheck disable=SC2086 # no option is none
    mpirun -n 2 "$numoe" batch -q $option --sync 0.1 -i "$tmp/in" -o "$tmp/killed" >"$tmp/log" 2>&1 </dev/null &
    job=$!
    sleep_random "$ms"
    case $((i % 4)) in
    0) kill -KILL $job ;;
    1) kill -USR1 $job ;;
    2) kill -TERM $job ;;
    3) pid=$(rank_pid $job $((i / 4 % 2))) && test -n "$pid" && kill -KILL "$pid" ;;
    esac 2>/dev/null
    wait $job
    status=$?
    # A job that was done before leaves nothing to do for the next ones: they begin anew, and sooner.
    if test $status -ne 0; then
        n_hit=$((n_hit + 1))
    else
        test "$(lines "$tmp/killed")" -eq $n_line || complain "kill $i: status 0, too few results"
        rm -f "$tmp/killed" "$tmp/killed".*
        ms=$((ms * 2 / 3))
    fi
    test $status -ne 2 && test $status -ne 3 || complain "kill $i: status $status: $(cat "$tmp/log")"
    # Results are locked until the last rank of a job is gone.
    test ! -e "$tmp/killed" || wait_until 5 flock -n "$tmp/killed" true || complain "kill $i: results are still locked"
done 2>/dev/null
ranks 2 -q -i "$tmp/in" -o "$tmp/killed" || complain "after kills: status $?: $(cat "$tmp/log")"
same_set "$tmp/want" "$tmp/killed" "after $n_kill kills (seed $begun_with)"
echo "$n_hit of $n_kill kills hit a job at work; seed $begun_with"
test $n_hit -gt 0 || complain 'no kill hit a job at work'

# ---- stopped by the warning before a time limit: status 75, once work has begun
make_requests 120 >"$tmp/many"
mpirun -n 2 "$numoe" batch -q --sync 0 -i "$tmp/many" -o "$tmp/warned" >"$tmp/log" 2>&1 </dev/null &
job=$!
wait_until 10 test -s "$tmp/warned"
kill -USR1 $job
wait $job
test $? -eq 75 || complain "status $? after SIGUSR1: $(cat "$tmp/log")"
says '^numoe: rank 0: stopped: User defined signal 1; the same command goes on; tokens of unfinished answers .*: [1-9][0-9]*$'

# ---- where the MPI lets the others live, what a lost rank had is done by them
mpirun --enable-recovery -n 2 "$numoe" batch -q --sync 0 -i "$tmp/many" -o "$tmp/lost" >"$tmp/log" 2>&1 </dev/null &
job=$!
wait_until 10 test -s "$tmp/lost"
kill -KILL "$(rank_pid $job 1)" || complain 'no rank 1'
wait $job
says '^numoe: rank 0: rank 1 was lost: what it had, [0-9]+ requests, is dealt again'
test "$(lines "$tmp/lost")" -eq 120 || complain "a lost rank: $(lines "$tmp/lost") results: $(cat "$tmp/log")"
"$numoe" batch -q -i "$tmp/many" -o "$tmp/alone" </dev/null || complain "status $? alone"
same_set "$tmp/alone" "$tmp/lost" 'a lost rank'

# ---- a rank that is silent: what it has is dealt again; when it wakes up, nothing is there twice
NUMOE_PEER_PATIENCE=3 mpirun -n 2 "$numoe" batch --sync 0 -i "$tmp/many" -o "$tmp/silent" >"$tmp/log" 2>&1 </dev/null &
job=$!
wait_until 10 test -s "$tmp/silent"
pid=$(rank_pid $job 1)
kill -STOP "$pid" || complain 'no rank 1'
wait_until 10 grep -q 'rank 1 is silent' "$tmp/log"
kill -CONT "$pid"
wait $job || complain "a silent rank: status $?: $(cat "$tmp/log")"
says '^numoe: rank 0: rank 1 is silent: what it had, [0-9]+ requests, is dealt again'
same_set "$tmp/alone" "$tmp/silent" 'a silent rank'

exit $bad
