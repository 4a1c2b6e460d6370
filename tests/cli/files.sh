#!/bin/sh
# What the program does with names of files: links, devices, pipes, descriptors, one file for two
# things, and inputs that are none.
. "$(dirname "$0")/lib.sh"

cd "$tmp" || exit 1
case $numoe in /*) ;; *) numoe=$OLDPWD/$numoe ;; esac
case $fixture in /*) ;; *) fixture=$OLDPWD/$fixture ;; esac
case $NUMOE_MODEL in /*) ;; *) NUMOE_MODEL=$OLDPWD/$NUMOE_MODEL ;; esac
mkdir w && cd w || exit 1

echo '[0, 88, 83, 300, 306, 389, 462]' >ids.json
logits() { "$numoe" eval -q -m "$fixture" --logits ids.json "$@" 2>"$tmp/err" </dev/null; }
stats() { "$numoe" run -q --temp 0 -n 4 -p Once --expert-stats-out "$@" 2>"$tmp/err" </dev/null; }
# Nothing may be left that has no name yet.
clean() { test -z "$(ls -A | grep '^\.')" || complain "$1 left $(ls -A)"; }

logits -o want.npy || complain "logits: $(cat "$tmp/err")"
stats want.stats >/dev/null || complain "statistics: $(cat "$tmp/err")"
test "$(head -c 4 want.stats)" = GGUF || complain 'statistics are no GGUF file'

# ---- a link stays, and what it leads to is written, be it there or not; permissions stay too
echo old >real && chmod 640 real
mkdir folder && ln -s real link && ln -s ../real folder/link && ln -s folder/link twice && ln -s new dangling
for name in link twice dangling; do
    logits -o $name || complain "$name: $(cat "$tmp/err")"
    test -L $name || complain "$name was replaced"
    same want.npy $name "logits through $name"
    echo old >real
    stats $name >/dev/null || complain "$name: $(cat "$tmp/err")"
    test -L $name || complain "$name was replaced by statistics"
    same want.stats $name "statistics through $name"
done
test "$(stat -c %a real)" = 640 || complain "permissions: $(stat -c %a real)"
ln -s circle circle
expect 2 'circle: cannot be created: Too many levels' "$numoe" run -p x --expert-stats-out circle

# ---- what is no regular file is written as it is
for what in logits:-o stats:; do
    command=${what%%:*}
    option=${what#*:}
    want=want.stats
    test $command = logits && want=want.npy
    mkfifo pipe
    cat pipe >got &
    # shellcheck disable=SC2086
    $command $option pipe >/dev/null || complain "$command to a FIFO: $(cat "$tmp/err")"
    wait $!
    test -p pipe || complain "$command replaced a FIFO"
    same $want got "$command through a FIFO"
    rm pipe
    # shellcheck disable=SC2086
    { echo first; $command $option /dev/fd/3 3>&1 >/dev/null; echo last; } >got
    { echo first; cat $want; echo last; } >expected
    same expected got "$command to a descriptor"
    # shellcheck disable=SC2086
    { echo second; $command $option /proc/self/fd/3 3>&1 >/dev/null; } >>got
    { echo second; cat $want; } >>expected
    same expected got "$command appended"
done
logits -o /dev/stdout >got || complain "/dev/stdout: $(cat "$tmp/err")"
same want.npy got '/dev/stdout in a file'
test -L /dev/stdout || complain '/dev/stdout was replaced'
logits -o /dev/null || complain "/dev/null: $(cat "$tmp/err")"
test -c /dev/null || complain '/dev/null was replaced'
expect 2 '/dev/fd/3: cannot be opened: Bad file' "$numoe" run -p x --expert-stats-out /dev/fd/3 3<ids.json

# ---- one file for two things
ln want.npy hard
cp "$fixture" mm.gguf
cp ids.json same.json
refuse()
{
    pattern=$1
    shift
    expect 2 "$pattern too: it would be overwritten" "$numoe" "$@"
    cmp -s ids.json same.json || complain "ids.json was overwritten by $*"
    cmp -s mm.gguf "$fixture" || complain "mm.gguf was overwritten by $*"
}
refuse '-o: both is the file of --routes' eval -m mm.gguf --logits ids.json -o both --routes ./both
refuse '-o: want.npy is the file of --routes' eval -m mm.gguf --logits ids.json -o want.npy --routes hard
refuse 'ids.json is the file of --logits' eval -m mm.gguf -o folder/../ids.json --logits ids.json
refuse '--routes: ids.json is the file of --logits' eval -m mm.gguf --routes ids.json --logits ids.json
refuse '-o: mm.gguf is the file of -m' eval -m mm.gguf -o mm.gguf --logits ids.json
refuse '--expert-stats-out: mm.gguf is the file of -m' run -m mm.gguf -p x --expert-stats-out mm.gguf
refuse 'is the file of -f' run -m mm.gguf -f ids.json --expert-stats-out ids.json
refuse 'is the file of --expert-stats' run --expert-stats want.stats -p x --expert-stats-out want.stats
NUMOE_MODEL=mm.gguf refuse 'is the file of -m' run -p x --expert-stats-out mm.gguf
echo x >two.xml
refuse '--svg: two.xml is the file of --topology' topo --topology two.xml --svg two.xml
"$numoe" eval -q -m mm.gguf --logits - -o ids.json <ids.json 2>"$tmp/err"
test $? -eq 2 || complain "standard input was overwritten: $(cat "$tmp/err")"
test -e both && complain 'refused, but there'
clean 'what was refused'

# ---- names as long as a folder takes, and too long ones
long=$(printf 'x%.0s' $(seq 255))
logits -o "$long" || complain "255 bytes: $(cat "$tmp/err")"
same want.npy "$long" 'a long name'
expect 2 'cannot be created: File name too long' "$numoe" run -p x --expert-stats-out "x$long"
expect 2 "'': cannot be created" "$numoe" run -p x --expert-stats-out ''
expect 2 "'': No such file" "$numoe" run -f ''
expect 2 'folder: is a directory' "$numoe" run -p x --expert-stats-out folder
expect 2 'none/: cannot be created' "$numoe" run -p x --expert-stats-out none/

# ---- a file that becomes too large is an error
(
    ulimit -f 8
    logits -o large.npy --routes large.json
)
test $? -eq 1 || complain "too large: $(cat "$tmp/err")"
grep -q '^numoe: large.npy: File too large$' "$tmp/err" || complain "too large: $(cat "$tmp/err")"
clean 'a full disk'

# ---- a reader that has gone: the signal ends the program, unfinished files go
mkfifo pipe
head -c 10 pipe >/dev/null &
awk 'BEGIN { printf "[0"; for (i = 1; i < 1000; i++) printf ", %d", 5 + i % 400; print "]" }' >many.json
env --default-signal=PIPE "$numoe" eval -q -m "$fixture" --logits many.json -o pipe --routes gone.json --chunk 8 2>"$tmp/err"
test $? -eq 141 || complain "no reader: $(cat "$tmp/err")"
clean 'a reader that has gone'

# ---- bytes that would end a text, inputs without an end, names with newlines
printf 'Tell me\0 a story' >nul
expect 2 'the prompt: byte 7 is NUL' "$numoe" run -q --chat -f nul
expect 2 'nul: byte 7 is NUL' "$numoe" run -q --chat-template ./nul -p x
printf 'Hello.\nTell\0 me\n' | "$numoe" chat -q -n 2 >got 2>"$tmp/err"
test $? -eq 2 || complain "NUL in a chat: $(cat "$tmp/err")"
grep -q '^numoe: the message: byte 4 is NUL' "$tmp/err" || complain "NUL in a chat: $(cat "$tmp/err")"
expect 2 '/dev/zero: longer than the 536870911 bytes' "$numoe" run -q -f /dev/zero
"$numoe" chat -q </dev/zero >got 2>"$tmp/err"
test $? -eq 2 || complain "an endless line: $(cat "$tmp/err")"
grep -q '^numoe: standard input: Message too long' "$tmp/err" || complain "endless: $(cat "$tmp/err")"
expect 2 'no subcommand .a\?b\?\[2J' "$numoe" "$(printf 'a\nb\033[2J')"

# ---- names in a model are no orders to a terminal
LC_ALL=C sed "s/fable-moe/$(printf 'f\302\233\033[2J')\\x0ae/" "$NUMOE_MODEL" >orders.gguf
"$numoe" run -m orders.gguf -n 1 -p Once >got 2>"$tmp/err" </dev/null || complain "orders: $(cat "$tmp/err")"
grep -q '^model      f???\[2J?e: deepseek2' "$tmp/err" || complain "orders: $(grep '^model' "$tmp/err" | cat -v)"

# ---- logits that are not numbers: the last weights of the file are NaN
cp "$fixture" nan.gguf
printf '\0\0\300\177%.0s' $(seq 256) >nans
truncate -s -1024 nan.gguf && cat nans >>nan.gguf
expect 2 'logits of position 0 are not numbers: .*damaged' "$numoe" eval -q -m nan.gguf --logits ids.json -o nan.npy
test -e nan.npy && complain 'logits that are not numbers in a file'
"$numoe" run -q -m nan.gguf -n 4 -p Once >got 2>"$tmp/err" </dev/null
test $? -eq 2 || complain "status of a damaged model: $(cat "$tmp/err")"
test -s got && complain "text of a damaged model: $(od -c got)"
clean 'a damaged model'

exit $bad
