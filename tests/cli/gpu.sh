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

run || complain "CPU: $(cat "$tmp/err")"
mv "$tmp/out" "$tmp/cpu"

# ---- at work
on_gpu 'no hot experts' '' --gpu-experts 0
on_gpu 'hot experts' '' --gpu-experts 20%
on_gpu 'all experts' '' --gpu-experts auto
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
expect 3 'version 2, this one version 1' "$numoe" run -q --gpu emu -n 1 -p x
NUMOE_EMU_FAULT=garbage@start
expect 2 'not its mark' "$numoe" run -q --gpu emu -n 1 -p x
unset NUMOE_EMU_FAULT
expect 1 'neither f32 nor bf16' env NUMOE_EMU_X=f64 "$numoe" run -q --gpu emu -n 1 -p x
expect 2 'cannot be started' "$numoe" run -q --gpu /nowhere/program -n 1 -p x
expect 2 'no GPU program numoe-gpu-other' "$numoe" run -q --gpu other -n 1 -p x
expect 2 "list of GPUs" "$numoe" run -q --gpu emu --gpu-devices 1x -n 1 -p x
exit $bad
