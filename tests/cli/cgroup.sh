#!/bin/sh
# Control groups of this machine, where they can be made (as root): what the group of a process allows is
# what is used, and what is granted under its limit of memory is not ended by it.
. "$(dirname "$0")/lib.sh"

groups=
trap 'test -z "$groups" || rmdir $groups; rm -rf "$tmp"' EXIT

# make_group CONTROLLER: sets group to a new one's folder and version to 1 or 2; status 1 where none can
# be made.
make_group()
{
    version=1
    top=$(awk -v c="$1" '$3 == "cgroup" && index("," $4 ",", "," c ",") { print $2; exit }' /proc/self/mounts)
    if test -z "$top"; then
        version=2
        top=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
        grep -qsw "$1" "$top/cgroup.subtree_control" || return
    fi
    group=$top/numoe-test-$$
    test -d "$group" && return
    mkdir "$group" 2>/dev/null || return
    groups="$groups $group"
}

# inside COMMAND...: as a process of the group
inside()
{
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# said PATTERN
said()
{
    cat "$tmp/out" "$tmp/err" | grep -Eq -- "$1" || complain "'$1' is not in: $(cat "$tmp/out" "$tmp/err")"
}

run() { inside "$numoe" run -q -n 2 -p 'Once upon' "$@"; }

if make_group cpu; then
    if test $version -eq 1; then
        cat "$group/cpu.cfs_period_us" >"$group/cpu.cfs_quota_us"
    else
        echo '100000 100000' >"$group/cpu.max"
    fi
    expect 0 '' inside "$numoe" topo
    said '^workers: 1$'
    said 'CPU quota: 1.00 CPUs'
    expect 0 '2 workers share 1 CPU' run -t 2
fi

cpus=$(taskset -pc $$ 2>/dev/null | sed 's/.*: //')
first=${cpus%%[,-]*}
if test -n "$cpus" && test "$first" != "$cpus" && make_group cpuset; then
    test $version -eq 2 || cat "$top/cpuset.mems" >"$group/cpuset.mems"
    echo "$first" >"$group/cpuset.cpus"
    expect 0 '' inside "$numoe" topo
    said '^workers: 1$'
    said "^  node [0-9]+ +CPU $first\$"
    said 'not in the cpuset of the control group'
fi

# From far too little on, the first limit that is accepted must be enough; sanitizers need more.
if sh -c 'ulimit -v 8388608 && exec "$0" version' "$numoe" >/dev/null 2>&1 && make_group memory; then
    limit=$group/memory.max
    test $version -eq 2 || limit=$group/memory.limit_in_bytes
    echo 24M >"$limit"
    expect 3 'the weights alone need .* \(the limit of the job or its control group\)' run -t 1
    mib=40
    while echo ${mib}M >"$limit" && run -t 1 >"$tmp/out" 2>"$tmp/err"; test $? -eq 3 && test $mib -lt 256; do
        said '^numoe: weights need .* the limit of the job or its control group is '
        mib=$((mib + 8))
    done
    expect 0 '' run -t 1
fi

test -n "$groups" || { echo 'no control group can be made here' && exit 77; }
exit $bad
