# Shared by the tests of numoe batch. Needs tests/cli/lib.sh.
# shellcheck shell=sh disable=SC2154,SC2034 # tmp, src, numoe: lib.sh; drawn is the caller's

# make_requests N: chats, completions, greedy and drawn, some that begin alike, of different lengths.
make_requests()
{
    tr -d '"\\\r' <"$src/tests/data/fable/heldout.txt" | tr '\n\t' '  ' | head -c 30000 |
        awk -v n="$1" '{
        for (i = 0; i < n; i++) {
            limit = "\"max_tokens\": " 4 + i * 7 % 23
            if (i % 4 == 0)
                body = "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}]"
            else if (i % 4 == 1)
                body = "\"temperature\": 0, \"prompt\": \"" substr($0, 1, 700) " and" i "\""
            else if (i % 4 == 2)
                body = "\"seed\": " i ", \"prompt\": \"" substr($0, 1 + i * 97, 20 + i * 31 % 300) "\""
            else
                body = "\"stop\": [\"the\"], \"prompt\": \"" substr($0, 1 + i * 53, 90) "\""
            printf "{\"custom_id\": \"r%d\", \"body\": {%s, %s}}\n", i, limit, body
        }
    }'
}

# built_with_mpi BUILD
built_with_mpi() { grep -q "^HAVE_MPI_FALSE='#'" "$1/config.log"; }

# random MAX: the next of a repeatable sequence, from seed, in $drawn; not printed, since a $( ) would not move on.
random()
{
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}

# sleep_random MS: less than so many milliseconds.
sleep_random()
{
    random "$1"
    sleep "$(awk "BEGIN { print $drawn / 1000 }")"
}

# same_set A B WHAT: the same results in any order.
same_set()
{
    sort "$1" >"$tmp/set.a"
    sort "$2" >"$tmp/set.b"
    cmp -s "$tmp/set.a" "$tmp/set.b" || complain "$3: the results differ: $(
        diff "$tmp/set.a" "$tmp/set.b" | cut -c 1-120 | head -n 6)"
}

# on_full_disk SIZE PATTERN COMMAND...: a batch of $tmp/in, by COMMAND on a file system of SIZE bytes, ends with
# status 1 and one line that begins with PATTERN; with more room it goes on in one process, to the results of $tmp/want.
on_full_disk()
{
    size=$1 pattern=$2
    shift 2
    mkdir -p "$tmp/disk"
    # shellcheck disable=SC2016 # expanded there
    unshare -m sh -c '
        disk=$1 size=$2 in=$3 err=$4 numoe=$5 && shift 5
        mount -t tmpfs -o size="$size" none "$disk" || exit 77
        "$@" -i "$in" -o "$disk/out" 2>"$err"
        status=$?
        mount -o remount,size=50m "$disk"
        test $status -eq 1 || { echo "status $status" >>"$err"; exit 2; }
        "$numoe" batch -q -i "$in" -o "$disk/out" 2>>"$err" || exit 2
        cat "$disk/out"' sh "$tmp/disk" "$size" "$tmp/in" "$tmp/err" "$numoe" "$@" \
        >"$tmp/from-disk" 2>/dev/null </dev/null
    case $? in
    0)
        test "$(grep -c '^numoe: ' "$tmp/err")" -eq 1 || complain "a full disk, not one line: $(cat "$tmp/err")"
        grep -Eq "^numoe: $pattern.*out: No space left" "$tmp/err" || complain "a full disk: $(cat "$tmp/err")"
        same_set "$tmp/want" "$tmp/from-disk" 'after a full file system'
        echo "a file system of $size bytes was full"
        ;;
    1 | 77) echo 'not tried: a full file system: none can be made here' ;;
    *) complain "a full file system of $size bytes: $(cat "$tmp/err")" ;;
    esac
}
