# Shared by the command line tests: where the program is, a scratch folder, and checks.
# shellcheck shell=sh
numoe=${NUMOE_TEST_BUILDDIR:-.}/numoe
src=${NUMOE_TEST_SRCDIR:-$(dirname "$0")/../..}
fixture=$src/tests/data/fixtures/deepseek3-a/deepseek3-a-f32.gguf
NUMOE_MODEL=$src/model/fable/fable-moe-Q4_K_M.gguf
export NUMOE_MODEL

test -x "$numoe" || { echo "$numoe is not built"; exit 1; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0

# The same choices each time, and nothing of the user's: tests/cli/tune.sh says otherwise.
NUMOE_PROBE=off
XDG_CACHE_HOME=$tmp/cache
export NUMOE_PROBE XDG_CACHE_HOME

complain()
{
    echo "FAILED: $*"
    bad=1
}

# expect STATUS PATTERN COMMAND...: runs it with empty stdin; the status must be that, and stderr one
# line that begins with "numoe: " and matches the extended regular expression. PATTERN "" wants no
# stderr at all; "*" anything.
expect()
{
    want=$1
    pattern=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    test $got -eq "$want" || complain "status $got instead of $want: $*: $(cat "$tmp/err")"
    case $pattern in
    '*') ;;
    '') test ! -s "$tmp/err" || complain "stderr of $*: $(cat "$tmp/err")" ;;
    *)
        test "$(wc -l <"$tmp/err")" -eq 1 || complain "not one line: $*: $(cat "$tmp/err")"
        grep -Eq "^numoe: .*($pattern)" "$tmp/err" ||
            complain "'$pattern' is not in the error of $*: $(cat "$tmp/err")"
        ;;
    esac
}

# wait_until SECONDS COMMAND...: until it succeeds; status 1 where that takes longer.
wait_until()
{
    n_try=$(($1 * 100))
    shift
    while test $n_try -gt 0; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.01
        n_try=$((n_try - 1))
    done
    return 1
}

# same A B WHAT: two files are equal.
same()
{
    cmp -s "$1" "$2" || complain "$3: $(cat "$1") / $(cat "$2")"
}
