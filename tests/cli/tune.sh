#!/bin/sh
# What is chosen for this machine: measured once, remembered, and left alone where that is asked for.
. "$(dirname "$0")/lib.sh"

NUMOE_PROBE=auto
folder=$XDG_CACHE_HOME/numoe

# story [VARIABLE=VALUE] NAME OPTION...: a short text into $tmp/NAME, what is said into $tmp/NAME.err.
story()
{
    name=$1
    shift
    "$numoe" run --temp 0 -n 4 -p 'The fox went' "$@" >"$tmp/$name" 2>"$tmp/$name.err" </dev/null ||
        complain "$name: $(cat "$tmp/$name.err")"
}

# tuned NAME PATTERN: what the run says of its tuning.
tuned()
{
    grep -Eq "^tuning +.*($2)" "$tmp/$1.err" || complain "$1 is not '$2': $(cat "$tmp/$1.err")"
}

# Nothing is measured, written, or made a folder of.
story none --no-probe
tuned none 'defaults, nothing is measured$'
grep -q 'that the workers can read' "$tmp/none.err" && complain '--no-probe measures bandwidth'
NUMOE_PROBE=off story off
tuned off 'defaults, nothing is measured$'
story other --topology 'pack:2 [numa(memory=8GiB)] core:1 pu:1'
tuned other 'another machine$'
test ! -e "$XDG_CACHE_HOME" || complain "something is written: $(ls -R "$XDG_CACHE_HOME")"

# Measured, then remembered: the probes are not made again.
NUMOE_LOG=info
export NUMOE_LOG
story first
tuned first 'measured now$'
grep -q 'they wait awake' "$tmp/first.err" || complain "no probe: $(cat "$tmp/first.err")"
story second
tuned second 'measured on [0-9]{4}-[0-9]{2}-[0-9]{2}$'
grep -Eq 'they wait awake|small pages take' "$tmp/second.err" && complain 'measured again'
unset NUMOE_LOG
test "$(find "$folder" -type f | wc -l)" -eq 1 || complain "not one file: $(ls -l "$folder")"
test "$(find "$folder" -type f -name '*.json' -perm 600 | wc -l)" -eq 1 ||
    complain "not the user's alone: $(ls -l "$folder")"
file=$(echo "$folder"/*.json)
cp "$file" "$tmp/kept"
"$numoe" doctor | grep -Eq "^ok +tuning .*measured on .*$(basename "$file")" ||
    complain "doctor: $("$numoe" doctor | grep tuning)"

# The doctor says where nothing will be remembered, and why nothing is opened.
doctor()
{
    "$numoe" doctor | grep -A2 tuning
}
NUMOE_PROBE=off doctor | grep -q '^ok .*defaults, nothing is measured$' || complain "off: $(NUMOE_PROBE=off doctor)"
XDG_CACHE_HOME=/dev/null doctor >"$tmp/doctor"
grep -q '^note .*not measured yet (/dev/null/numoe/' "$tmp/doctor" && grep -q 'each start measures again' "$tmp/doctor" ||
    complain "no folder: $(cat "$tmp/doctor")"
XDG_CACHE_HOME=$tmp/new doctor | grep -q '^note' && complain 'a folder that can be made is noted'
NUMOE_PROBE=of doctor | grep -q '^warning .*NUMOE_PROBE is "of"' || complain "of: $(NUMOE_PROBE=of doctor)"

# A choice that is there is used, with --no-probe it is not, and what is asked for counts more.
sed -n '1h;1!H;${g;s/"sleep_ns": \[[^,]*,/"sleep_ns": [777000,/;p;}' "$tmp/kept" >"$file"
story used
tuned used 'awake for 777 us.*measured on'
story unused --no-probe
tuned unused 'awake for 200 us'
NUMOE_SPIN_US=500 story asked -t 1
tuned asked 'as many workers as asked for, awake for 500 us'

# Damaged: measured anew, and written anew.
head -c 100 "$tmp/kept" >"$file"
story damaged
tuned damaged 'measured now$'
story mended
tuned mended 'measured on'

# Nowhere to write: no error, and nothing said but to who wants to know.
echo x >"$tmp/file"
XDG_CACHE_HOME=$tmp/file/below story nowhere -q
test ! -s "$tmp/nowhere.err" || complain "said: $(cat "$tmp/nowhere.err")"
XDG_CACHE_HOME=$tmp/file/below NUMOE_LOG=info story nowhere
tuned nowhere 'measured now$'
grep -q "^numoe: info: $tmp/file/below/.*cannot be written (Not a directory)" "$tmp/nowhere.err" ||
    complain "not said: $(cat "$tmp/nowhere.err")"

# Several at once.
rm -rf "$XDG_CACHE_HOME"
for i in 1 2 3; do
    story "at-once-$i" &
done
wait
for i in 1 2 3; do
    tuned "at-once-$i" 'measured now|measured on|another process measures'
done
test "$(find "$folder" -type f | wc -l)" -eq 1 || complain "left behind: $(ls -l "$folder")"

# Whatever was chosen, the text is the same.
for name in off other first second used unused asked damaged mended nowhere at-once-1 at-once-2 at-once-3; do
    same "$tmp/none" "$tmp/$name" "$name"
done

NUMOE_PROBE=maybe expect 2 'NUMOE_PROBE is "maybe", expected auto or off' "$numoe" run -n 1 -p x
NUMOE_SPIN_US=0 expect 2 'NUMOE_SPIN_US is "0", expected a number from 1' "$numoe" run -n 1 -p x

# Every subcommand that opens an engine can be told.
for command in run chat batch eval plan bench; do
    "$numoe" help $command | grep -q -e '--no-probe' || complain "$command has no --no-probe"
done
"$numoe" bench --no-probe -p 8 -n 0 -r 1 >/dev/null 2>"$tmp/err" || complain "bench: $(cat "$tmp/err")"

exit $bad
