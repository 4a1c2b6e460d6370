#!/bin/sh
# A GPU program at work and in trouble, with the emulated one: whatever happens to it, the text is the
# CPU's, and what happened is said.
. "$(dirname "$0")/lib.sh"
prompt='The fox and the crow'
# One warning at a time, whatever the program is called on this machine.
NUMOE_GPU_PATIENCE=1
export NUMOE_GPU_PATIENCE

run()
{
    "$numoe" run -q -c 512 --temp 0 -n 12 -p "$prompt" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
}

# on_gpu WHAT PATTERN OPTIONS...: the same text; stderr has the pattern, or nothing where it is ""
on_gpu()
{
    what=$1
    pattern=$2
    shift 2
    run --gpu emu "$@" || complain "$what: $(cat "$tmp/err")"
    same "$tmp/cpu" "$tmp/out" "$what"
    if test -z "$pattern"; then
        test ! -s "$tmp/err" || complain "$what: $(cat "$tmp/err")"
    else
        grep -Eq "^numoe: warn: .*($pattern)" "$tmp/err" || complain "$what: $(cat "$tmp/err")"
    fi
}

# It takes 12 s to give a program up that hangs while it loads: meanwhile, the rest.
NUMOE_EMU_FAULT=stop@load NUMOE_GPU_PROGRAM=emu "$numoe" run -q -c 512 --temp 0 -n 12 -p "$prompt" \
    --gpu auto >"$tmp/hang.out" 2>"$tmp/hang.err" </dev/null &
hanging=$!

run || complain "CPU: $(cat "$tmp/err")"
mv "$tmp/out" "$tmp/cpu"

# ---- at work
on_gpu 'no hot experts' '' --gpu-experts 0
on_gpu 'hot experts' '' --gpu-experts 20%
on_gpu 'all experts' '' --gpu-experts auto
NUMOE_EMU_DEVICES=3 NUMOE_EMU_AT_ONCE=1 on_gpu 'the second of three GPUs' '' --gpu-devices 1
on_gpu 'too little memory' 'of 6 layers are there' --chunk 64 --gpu-experts 0 --vram-budget 10MB

# ---- in trouble, once
for fault in kill@x:20 exit@step:4 fault@result:3 ids@step:2 stop@x:9; do
    rm -f "$tmp/once"
    export NUMOE_EMU_FAULT=$fault NUMOE_EMU_FAULT_ONCE="$tmp/once"
    on_gpu "$fault once" 'started again' --gpu-experts 3
    test "$(wc -l <"$tmp/err")" -eq 1 || complain "$fault: $(cat "$tmp/err")"
done
rm -f "$tmp/once"
NUMOE_EMU_FAULT=short@ready on_gpu 'out of memory once' '' --gpu-experts 3
unset NUMOE_EMU_FAULT_ONCE

# ---- again and again
NUMOE_EMU_FAULT=kill@x:7 on_gpu 'killed each time' 'going on with the CPU' --gpu-experts 3

# ---- from the beginning
export NUMOE_EMU_FAULT
NUMOE_EMU_FAULT=exit@load
expect 1 'ended with status 3' "$numoe" run -q --gpu emu -n 1 -p x
NUMOE_EMU_FAULT=version@start
expect 3 'version 3, this one version 2' "$numoe" run -q --gpu emu -n 1 -p x
NUMOE_EMU_FAULT=garbage@start
expect 2 'not its mark' "$numoe" run -q --gpu emu -n 1 -p x
unset NUMOE_EMU_FAULT
# its own memory, not the device's: nothing is tried again with less
if sh -c 'ulimit -v 60000 && exec "$0" version' "$numoe" >"$tmp/out" 2>&1; then # not with sanitizers
    printf '#!/bin/sh\nulimit -v 60000 && exec "%s"\n' "$(cd "$(dirname "$numoe")" && pwd)/numoe-gpu-emu" >"$tmp/small"
    chmod +x "$tmp/small"
    expect 3 'small: .*(ulimit -v leaves|cannot map|address space)' "$numoe" run -q --gpu "$tmp/small" -n 1 -p x
fi
echo '{"custom_id": "a", "body": {"prompt": "x", "max_tokens": 1}}' >"$tmp/jobs"
expect 2 "throughput mode is the CPU's alone, whatever the placement" "$numoe" batch -q --gpu emu \
    --placement replicate --mode throughput -i "$tmp/jobs" -o "$tmp/done" \
    --topology 'pack:2 [numa(memory=64GiB)] core:2 pu:1'
expect 1 'neither f32 nor bf16' env NUMOE_EMU_X=f64 "$numoe" run -q --gpu emu -n 1 -p x
expect 2 'cannot be started' "$numoe" run -q --gpu /nowhere/program -n 1 -p x
expect 2 'no GPU program numoe-gpu-other' "$numoe" run -q --gpu other -n 1 -p x
expect 2 "list of GPUs" "$numoe" run -q --gpu emu --gpu-devices 1x -n 1 -p x
expect 2 "GPU 3 is not there, or named twice: .* has 3" env NUMOE_EMU_DEVICES=3 "$numoe" run -q --gpu emu \
    --gpu-devices 3 -n 1 -p x
expect 2 "GPU 1 is not there, or named twice" env NUMOE_EMU_DEVICES=3 "$numoe" run -q --gpu emu \
    --gpu-devices 1,1 -n 1 -p x
expect 2 'names 2 GPUs: .* works with 1 at a time' env NUMOE_EMU_DEVICES=3 NUMOE_EMU_AT_ONCE=1 \
    "$numoe" run -q --gpu emu --gpu-devices 0,2 -n 1 -p x

# ---- copies on nodes are for experts that the GPU has not
two='pack:2 [numa(memory=8GiB)] core:2 pu:1'
head -c 1500 "$src/README.md" >"$tmp/long"
for part in 50% 100%; do
    "$numoe" run -q --temp 0 -n 8 -f "$tmp/long" --gpu emu --gpu-experts $part >"$tmp/want" </dev/null
    "$numoe" run --temp 0 -n 8 -f "$tmp/long" --chunk 32 --gpu emu --gpu-experts $part --topology "$two" \
        --placement shard --replica-budget 10% --adapt >"$tmp/out" 2>"$tmp/err" </dev/null
    grep -q 'a GPU keeps the experts that it begins with' "$tmp/err" || complain 'not said: the GPU'
    grep -o '[0-9]* cop.* made' "$tmp/err" >"$tmp/made"
    cmp -s "$tmp/want" "$tmp/out" || complain "--adapt beside a GPU: another text: $(cat "$tmp/err")"
    case $part,$(cat "$tmp/made") in
    50%,[1-9]* | 100%,0*) ;;
    *) complain "$part of the experts on the GPU: $(cat "$tmp/made") $(cat "$tmp/err")" ;;
    esac
done

# ---- which GPU
NUMOE_EMU_DEVICES=3 NUMOE_EMU_AT_ONCE=1
export NUMOE_EMU_DEVICES NUMOE_EMU_AT_ONCE
for devices in '' '--gpu-devices 2'; do
    want=${devices:-0}
    # shellcheck disable=SC2086
    "$numoe" run -c 512 --temp 0 -n 12 -p "$prompt" --gpu emu $devices >"$tmp/out" 2>"$tmp/err" </dev/null
    same "$tmp/cpu" "$tmp/out" "GPU ${want##* }"
    grep -q "^gpu  *numoe-gpu-emu .* on emulated (GPU ${want##* }):" "$tmp/err" ||
        complain "GPU ${want##* }: $(cat "$tmp/err")"
    grep -q '^memory .*GB/s of weights outside the GPU' "$tmp/err" || complain "memory: $(cat "$tmp/err")"
done
unset NUMOE_EMU_DEVICES NUMOE_EMU_AT_ONCE

# ---- a program that never gets to work: auto goes on without it, by name it is an error
NUMOE_GPU_PROGRAM=emu
export NUMOE_GPU_PROGRAM
without()
{
    what=$1 status=$2 pattern=$3
    shift 3
    env "$@" "$numoe" run -q -c 512 --temp 0 -n 12 -p "$prompt" --gpu auto >"$tmp/out" 2>"$tmp/err" </dev/null ||
        complain "$what: $(cat "$tmp/err")"
    same "$tmp/cpu" "$tmp/out" "$what"
    grep -Eq "^numoe: warn: no GPU, going on with the CPU alone: .*($pattern)" "$tmp/err" ||
        complain "$what: '$pattern' is not in $(cat "$tmp/err")"
    test "$(wc -l <"$tmp/err")" -eq 1 || complain "$what: more than a line: $(cat "$tmp/err")"
    expect "$status" "$pattern" env "$@" "$numoe" run -q -n 1 -p x --gpu "$(under_test "$@")"
}
# The program that NUMOE_GPU_PROGRAM=... names among the arguments.
under_test()
{
    for one in "$@"; do
        case $one in NUMOE_GPU_PROGRAM=*) echo "${one#*=}" && return ;; esac
    done
    echo emu
}
without 'no program' 2 'no GPU program numoe-gpu-other' NUMOE_GPU_PROGRAM=other
without 'does not start' 2 'cannot be started' NUMOE_GPU_PROGRAM=/nowhere/program
without 'not a GPU program' 1 'ended with status 0' NUMOE_GPU_PROGRAM=/bin/true
without 'no device' 1 'no GPU can be used: no device was asked for' NUMOE_EMU_DEVICES=0
without 'ends at once' 1 'ended with status 3' NUMOE_EMU_FAULT=exit@start
without 'ends after HELLO' 1 'ended with status 3' NUMOE_EMU_FAULT=exit@hello
without 'another version' 3 'version 3, this one version 2' NUMOE_EMU_FAULT=version@start
without 'garbage' 2 'not its mark' NUMOE_EMU_FAULT=garbage@start
without 'garbage while it loads' 2 'not its mark' NUMOE_EMU_FAULT=garbage@load
without 'dies while it loads' 1 'signal 9' NUMOE_EMU_FAULT=kill@load
without 'a fault instead of READY' 1 'an error was asked for' NUMOE_EMU_FAULT=fault@ready
without 'out of memory always' 3 'out of memory, as was asked for' NUMOE_EMU_FAULT=short@ready
without 'too small for a layer' 3 'too little for one layer' NUMOE_EMU_VRAM=1
expect 2 'GPU 7 is not there' "$numoe" run -q --gpu auto --gpu-devices 7 -n 1 -p x

wait $hanging || complain "a program that hangs while it loads: $(cat "$tmp/hang.err")"
same "$tmp/cpu" "$tmp/hang.out" 'a program that hangs while it loads'
grep -Eq '^numoe: warn: no GPU, going on .* no message within 12 s' "$tmp/hang.err" ||
    complain "a program that hangs while it loads: $(cat "$tmp/hang.err")"

# ---- what the doctor says of it
NUMOE_EMU_DEVICES=2 NUMOE_EMU_AT_ONCE=1 expect 0 '' "$numoe" doctor
grep -q '^ok  *GPU program  *numoe-gpu-emu .*, the CPU, 2 GPUs, 1 at a time (--gpu-devices)$' "$tmp/out" ||
    complain "doctor: $(cat "$tmp/out")"
grep -q '^ok  *GPU program  *GPU 1: emulated, 1024.0 of 1024.0 GiB free, node not known$' "$tmp/out" ||
    complain "doctor: $(cat "$tmp/out")"
NUMOE_EMU_FAULT=exit@start expect 0 '' "$numoe" doctor
grep -q 'GPU program .*ended with status 3$' "$tmp/out" || complain "doctor: $(cat "$tmp/out")"
NUMOE_GPU_PROGRAM=other expect 0 '' "$numoe" doctor
grep -q 'GPU program .*there is no GPU program numoe-gpu-other' "$tmp/out" || complain "doctor: $(cat "$tmp/out")"
unset NUMOE_GPU_PROGRAM

# ---- routes and statistics, also of layers that are wholly the GPU's
echo 'Once upon a time there was a fox who met a crow. The crow had a piece of cheese.' >"$tmp/text"
echo '[1, 50, 60, 70, 80, 90]' >"$tmp/ids"
gather()
{
    what=$1
    shift
    "$numoe" experts collect -q -f "$tmp/text" --window 16 -o "$tmp/$what.stats" "$@" </dev/null ||
        complain "collect $what"
    "$numoe" eval -q --logits "$tmp/ids" --routes "$tmp/$what.routes" -o "$tmp/$what.npy" "$@" </dev/null ||
        complain "eval $what"
}
gather cpu
for hot in 0 auto; do
    gather "$hot" --gpu emu --gpu-experts $hot
    same "$tmp/cpu.stats" "$tmp/$hot.stats" "statistics, --gpu-experts $hot"
    for form in routes npy; do
        cmp -s "$tmp/cpu.$form" "$tmp/$hot.$form" || complain "$form, --gpu-experts $hot"
    done
done
exit $bad
