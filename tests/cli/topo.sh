#!/bin/sh
# numoe topo and numoe doctor: every form, and what a user can get wrong.
. "$(dirname "$0")/lib.sh"

two='pack:2 [numa(memory=8GiB)] core:4 pu:2'

# has PATTERN FILE: a line matches the extended regular expression.
has()
{
    grep -Eq -- "$1" "$2" || complain "'$1' is not in: $(cat "$2")"
}

expect 0 '' "$numoe" topo
has '^this machine$' "$tmp/out"
has '^workers: [1-9]' "$tmp/out"

expect 0 '' "$numoe" topo --topology "$two"
has 'unknown processor, 2 packages, 2 NUMA nodes, 8 cores, 16.0 GiB' "$tmp/out"
has '^  node 1 +4 +4 +8.0 GiB' "$tmp/out"
has '^  node 1    CPU 8-14:2$' "$tmp/out"
has '^  CPU 1-15:2: further hardware thread' "$tmp/out"

expect 0 '' "$numoe" topo --topology "$two" --json
has '"workers": 8,' "$tmp/out"
test "$(grep -c '"use": "worker"' "$tmp/out")" -eq 8 || complain 'JSON: not 8 workers'

expect 0 '' "$numoe" topo --topology "$two" --svg "$tmp/two.svg"
test -s "$tmp/out" && complain 'a picture in a file, and text on stdout'
has '^</svg>$' "$tmp/two.svg"
test "$(grep -c 'class="core"' "$tmp/two.svg")" -eq 8 || complain 'SVG: not 8 cores'
expect 0 '' "$numoe" topo --topology "$two" --svg -
same "$tmp/two.svg" "$tmp/out" 'the picture on stdout'

# A process with one CPU of several is told who forbids the rest.
cpus=$(taskset -pc $$ 2>/dev/null | sed 's/.*: //')
first=${cpus%%[,-]*}
if test -n "$cpus" && test "$first" != "$cpus"; then
    expect 0 '' taskset -c "$first" "$numoe" topo
    has '^workers: 1$' "$tmp/out"
    has "^  node [0-9]+ +CPU $first\$" "$tmp/out"
    has 'not in the affinity mask' "$tmp/out"
    expect 0 '' taskset -c "$first" "$numoe" doctor
    has '^warning  CPUs allowed ' "$tmp/out"
    has ' mend: +mpirun --bind-to none' "$tmp/out"
fi

# Firmware that puts node 0 over one and a half of two sockets: hwloc's banner about it is not shown.
system=$tmp/firmware/sys/devices/system
for cpu in 0 1 2 3; do
    mkdir -p "$system/cpu/cpu$cpu/topology"
    cd "$system/cpu/cpu$cpu/topology" || exit 1
    echo $((cpu / 2)) >physical_package_id
    echo $cpu >core_id
    echo $((1 << cpu)) >core_cpus
    printf '%x\n' $((cpu < 2 ? 3 : 12)) >package_cpus
    cp core_cpus thread_siblings
    cp package_cpus core_siblings
    cd "$OLDPWD" || exit 1
done
for node in 0:7 1:8; do
    mkdir -p "$system/node/node${node%:*}"
    echo "${node#*:}" >"$system/node/node${node%:*}/cpumap"
    echo "Node ${node%:*} MemTotal: 1048576 kB" >"$system/node/node${node%:*}/meminfo"
done
for kind in online possible; do
    echo 0-3 >"$system/cpu/$kind"
    echo 0-1 >"$system/node/$kind"
done
expect 0 '' env HWLOC_FSROOT="$tmp/firmware" HWLOC_COMPONENTS=linux,stop "$numoe" topo
has '2 packages, 2 NUMA nodes, 4 cores' "$tmp/out"
test "$(grep -c '^  node 0 .* shared by packages$' "$tmp/out")" -eq 2 || complain 'node 0 is not over two packages'

expect 0 '' "$numoe" doctor
has '^(ok|note|warning) +kernel ' "$tmp/out"
has '^[0-9]+ warnings?, [0-9]+ notes?$' "$tmp/out"
has '^ok +address space +not limited' "$tmp/out"
if sh -c 'ulimit -v 8388608 && exec "$0" version' "$numoe" >"$tmp/out" 2>&1; then # not with sanitizers
    expect 0 '' sh -c 'ulimit -v 8388608 && exec "$0" doctor' "$numoe"
    has '^warning  address space +at most 8.0 GiB may be mapped' "$tmp/out"
fi
expect 0 '' "$numoe" doctor --json
has '"check": "huge pages"' "$tmp/out"

# ---- usage
for command in topo doctor; do
    expect 0 '' "$numoe" help $command
    has "^Usage: numoe $command" "$tmp/out"
    expect 0 '' "$numoe" $command --help
    expect 2 "$command: unexpected argument 'x'" "$numoe" $command x
    expect 2 "$command: unknown option '--jsn'" "$numoe" $command --jsn
    if test -w /dev/full; then
        "$numoe" $command >/dev/full 2>"$tmp/err"
        test $? -eq 1 || complain "$command: status with a full disk"
    fi
done
# what the environment names is the machine, or an error: never this machine without a word
for command in 'topo' 'plan' 'run -q -n 1 -p x'; do
    # shellcheck disable=SC2086
    expect 2 'HWLOC_XMLFILE in the environment: topology /nowhere.xml: No such file' \
        env HWLOC_XMLFILE=/nowhere.xml "$numoe" $command
    # shellcheck disable=SC2086
    expect 2 'HWLOC_XMLFILE in the environment: .*not an XML file' \
        env HWLOC_XMLFILE="$src/LICENSE" "$numoe" $command
    # shellcheck disable=SC2086
    expect 2 'HWLOC_SYNTHETIC in the environment: topology "rubbish": neither' \
        env HWLOC_SYNTHETIC=rubbish "$numoe" $command
done
expect 0 '' env HWLOC_SYNTHETIC="$two" "$numoe" topo
has '2 NUMA nodes, 8 cores' "$tmp/out"
expect 2 'exclude each other' "$numoe" topo --json --svg "$tmp/x.svg"
expect 2 'neither a path ending in .xml nor a synthetic' "$numoe" topo --topology 'pack:x'
expect 2 'missing.xml: No such file' "$numoe" topo --topology "$tmp/missing.xml" --svg "$tmp/x.svg"
test -e "$tmp/x.svg" && complain 'a picture of nothing'
expect 2 "$tmp" "$numoe" topo --svg "$tmp"
expect 2 'nowhere' "$numoe" topo --svg "$tmp/nowhere/x.svg"

exit $bad
