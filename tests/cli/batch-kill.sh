#!/bin/sh
# A batch that is ended at random moments, by every signal and by a full disk, has the results of one
# that was left alone. BATCH_REQUESTS and BATCH_KILLS make it longer (make check-batch); the moments
# are those of BATCH_SEED.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/batch-lib.sh"

n_request=${BATCH_REQUESTS:-24} n_kill=${BATCH_KILLS:-5} seed=${BATCH_SEED:-$$}
launcher=${BATCH_LAUNCHER:-} # "mpirun -n 2", for several processes
ulimit -c 0
env --default-signal=INT,QUIT true 2>/dev/null || { echo 'env cannot restore signals'; exit 77; }

# Replaces the shell, so that a signal reaches the program: run within ( ).
# shellcheck disable=SC2086 # words
run() { exec env --default-signal=INT,QUIT $launcher "$numoe" batch -q --sync 0.2 "$@" 2>"$tmp/err" </dev/null; }

make_requests "$n_request" >"$tmp/in"
start=$(date +%s%N)
"$numoe" batch -q -i "$tmp/in" -o "$tmp/want" </dev/null || complain "status $? when left alone"
ms=$((($(date +%s%N) - start) / 1000000))
test "$(wc -l <"$tmp/want")" -eq "$n_request" || complain "$(wc -l <"$tmp/want") results"
echo "$n_request requests in $ms ms; seed $seed"

# random MAX: the next of a repeatable sequence.
random()
{
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    echo $((seed / 65536 % $1))
}

# Moments over the whole of a run, the loading too; what is done is kept, so later runs are shorter:
# anew every few kills.
kill_all()
{
    out=$1 option=$2
    for i in $(seq "$n_kill"); do
        test $((i % 5)) -eq 1 && rm -f "$out" "$out".*
        case $((i % 5)) in 0) signal=TERM ;; 1) signal=KILL ;; 2) signal=INT ;; 3) signal=USR1 ;; 4) signal=HUP ;; esac
        # shellcheck disable=SC2086 # no option is none
        (run -i "$tmp/in" -o "$out" $option) &
        pid=$!
        sleep "$(random "$ms" | awk '{ print $1 / 1000 }')"
        kill -$signal $pid 2>/dev/null
        wait $pid
        status=$?
        case $signal$status in
        KILL137) ;;
        TERM75 | INT75 | USR175 | HUP75) n_resumable=$((n_resumable + 1)) ;;
        TERM143 | INT130 | USR1138 | HUP129) ;; # it was not the program yet
        *0) test "$(wc -l <"$out")" -eq "$n_request" || complain "status 0 and $(wc -l <"$out") results" ;;
        *) complain "status $status after $signal: $(cat "$tmp/err")" ;;
        esac
    done
    # shellcheck disable=SC2086
    (run -i "$tmp/in" -o "$out" $option) || complain "status $? in the end: $(cat "$tmp/err")"
    same_set "$tmp/want" "$out" "after $n_kill kills"
}
n_resumable=0
kill_all "$tmp/out" ''
n_kill=$(((n_kill + 1) / 2))
kill_all "$tmp/out2" --ordered
test $n_resumable -gt 0 || complain 'no signal was answered by status 75'

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

# ---- a real one, where a file system can be made
cat >"$tmp/on-tmpfs" <<'END'
mount -t tmpfs -o size="$6" none "$1" || exit 77
"$2" batch -q --sync 0 -i "$3" -o "$1/out" 2>"$4" </dev/null
status=$?
mount -o remount,size=50m "$1"
test $status -eq 1 || { echo "status $status" >>"$4"; exit 2; }
"$2" batch -q -i "$3" -o "$1/out" </dev/null && cp "$1/out" "$5" || exit 2
END
mkdir "$tmp/disk"
unshare -m sh "$tmp/on-tmpfs" "$tmp/disk" "$numoe" "$tmp/in" "$tmp/err" "$tmp/from-disk" \
    $((bytes / 2 / 4096 * 4096 + 4096)) 2>/dev/null
case $? in
0)
    grep -q 'No space left' "$tmp/err" || complain "a full disk: $(cat "$tmp/err")"
    same_set "$tmp/want" "$tmp/from-disk" 'after a full file system'
    ;;
1 | 77) echo 'no file system can be made here' ;;
*) complain "a full file system: $(cat "$tmp/err")" ;;
esac

# ---- two at a time
(run -i "$tmp/in" -o "$tmp/two") &
pid=$!
for _ in $(seq 100); do
    test -s "$tmp/two.journal" && break
    sleep 0.05
done
expect 2 'another job is writing these results' "$numoe" batch -q -i "$tmp/in" -o "$tmp/two"
kill -KILL $pid
wait $pid

exit $bad
