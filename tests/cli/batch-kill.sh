#!/bin/sh
# A batch that is ended at random moments, by every signal and by a full disk, has the results of one
# that was left alone. BATCH_REQUESTS and BATCH_KILLS make it longer (make check-batch); the moments
# are those of BATCH_SEED.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/batch-lib.sh"

n_request=${BATCH_REQUESTS:-24} n_kill=${BATCH_KILLS:-5} seed=${BATCH_SEED:-$$}
ulimit -c 0
env --default-signal=INT,QUIT,HUP true 2>/dev/null || { echo 'env cannot restore signals'; exit 77; }

# Replaces the shell, so that a signal reaches the program: run within ( ).
run() { exec env --default-signal=INT,QUIT,HUP "$numoe" batch -q --sync 0.2 "$@" 2>"$tmp/err" </dev/null; }

make_requests "$n_request" >"$tmp/in"
"$numoe" batch -q -i "$tmp/in" -o "$tmp/want" </dev/null || complain "status $? when left alone"
test "$(wc -l <"$tmp/want")" -eq "$n_request" || complain "$(wc -l <"$tmp/want") results"
echo "$n_request requests; seed $seed"

n_results() { cat "$1" "$1.part" 2>/dev/null | wc -l; }

# wait_for_results OUT PID TEST N: until the results' lines are as many, or the job is gone.
wait_for_results()
{
    while kill -0 "$2" 2>/dev/null; do
        test "$(n_results "$1")" "$3" "$4" && return
        sleep 0.01
    done
}

# until_moment OUT PID BEFORE: while it loads, or when it has some more results than its journal knows of;
# results, not seconds: on a busy machine too, it is killed at work. There were BEFORE of them; those
# that the journal does not know are cut off when it begins.
until_moment()
{
    random 4
    if test "$drawn" -eq 0; then
        sleep_random 200
        return
    fi
    random $((2 * n_request / n_kill))
    known=$(awk 'END { print (NR > 1 ? NR - 1 : 0) }' "$1.journal" 2>/dev/null)
    test "$3" -eq "${known:-0}" || wait_for_results "$1" "$2" -ne "$3"
    wait_for_results "$1" "$2" -ge $((${known:-0} + 1 + drawn))
}

# check_status SIGNAL STATUS: what a run that was sent the signal may end with.
check_status()
{
    case $1$2 in
    KILL137) ;;
    KILL*) complain "status $2 after KILL: $(cat "$tmp/err")" ;;
    *75) n_resumable=$((n_resumable + 1)) ;;
    TERM143 | INT130 | USR1138 | USR2140 | HUP129 | XCPU152) ;; # it was not the program yet
    *) complain "status $2 after $1: $(cat "$tmp/err")" ;;
    esac
}

# kill_all OUT OPTION: kills a job n_kill times, by each signal in turn, and lets it end; a run that
# ended by itself is no kill. What is done is kept: anew every few kills, or when all is done.
kill_all()
{
    out=$1 option=$2 i=0 try=0
    while test $i -lt "$n_kill"; do
        try=$((try + 1))
        test $try -le $((6 * n_kill)) || { complain "only $i of $n_kill kills"; break; }
        test $((i % 7)) -eq 0 && rm -f "$out" "$out".*
        signal=$(echo KILL TERM INT USR1 HUP USR2 XCPU | cut -d ' ' -f $((i % 7 + 1)))
        before=$(n_results "$out")
        # shellcheck disable=SC2086 # no option is none
        (run -i "$tmp/in" -o "$out" $option) &
        pid=$!
        until_moment "$out" $pid "$before"
        kill -"$signal" $pid 2>/dev/null
        wait $pid 2>/dev/null
        status=$?
        if test $status -ne 0; then
            check_status "$signal" $status
            i=$((i + 1))
        else
            n=$(wc -l <"$out")
            test "$n" -eq "$n_request" || complain "status 0 and $n results"
            rm -f "$out" "$out".*
        fi
    done
    # shellcheck disable=SC2086
    (run -i "$tmp/in" -o "$out" $option) || complain "status $? in the end: $(cat "$tmp/err")"
    same_set "$tmp/want" "$out" "after $i kills"
    echo "$i kills in $try runs, $n_resumable of them ended resumable"
}
n_resumable=0
kill_all "$tmp/out" ''
test $n_resumable -gt 0 || complain 'no signal was answered by status 75'
n_kill=$(((n_kill + 1) / 2)) n_resumable=0
kill_all "$tmp/out2" --ordered

# ---- a file that must not grow: like a full disk, at several places, a torn line among them
bytes=$(wc -c <"$tmp/want")
for part in 10 2; do
    (ulimit -f $((bytes / part / 512)) && run -i "$tmp/in" -o "$tmp/full")
    status=$?
    test $status -eq 1 || complain "status $status with a full disk: $(cat "$tmp/err")"
    grep -q '^numoe: .*full.*: File too large' "$tmp/err" || complain "full: $(cat "$tmp/err")"
done
(run -i "$tmp/in" -o "$tmp/full") || complain "status $? after a full disk: $(cat "$tmp/err")"
same_set "$tmp/want" "$tmp/full" 'after a full disk'

# ---- a real one, where a file system can be made: hardly larger than a journal, and half of what it needs
for size in 8192 $((bytes / 2 / 4096 * 4096 + 4096)); do
    on_full_disk $size '' "$numoe" batch -q --sync 0
done

# ---- two at a time
(run -i "$tmp/in" -o "$tmp/two") &
pid=$!
wait_until 8 test -s "$tmp/two.journal"
kill -STOP $pid # it must not be done before the other has begun
expect 2 'another job is writing these results' "$numoe" batch -q -i "$tmp/in" -o "$tmp/two"
kill -KILL $pid
wait $pid 2>/dev/null

exit $bad
