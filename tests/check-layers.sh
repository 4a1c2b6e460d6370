#!/bin/sh
# A folder includes only from folders of a lower layer, or from itself; folders of one layer do not
# know each other. Only the public header is open to all.
cd "${NUMOE_TEST_SRCDIR:-$(dirname "$0")/..}" || exit 1

layer_of()
{
    case $1 in
    base | cluster) echo 0 ;;
    numa | kernels) echo 1 ;;
    model | gpu) echo 2 ;;
    store) echo 3 ;;
    dense | experts) echo 4 ;;
    runtime) echo 5 ;;
    cli | tests | bench) echo 6 ;;
    esac
}

bad=0
seen=0
while IFS=: read -r file header; do
    seen=$((seen + 1))
    from=${file%%/*}
    case $file in
    gpu/emu/* | gpu/cuda/* | gpu/common/*) from=cli ;; # programs, which may know the parts that an engine knows
    esac
    to=${header%%/*}
    if test "$header" = numoe/numoe.h || { test "$to" = "$from" && test -f "$header"; }; then
        continue
    fi
    if ! test -f "$header"; then
        echo "$file: there is no \"$header\" (a folder comes first)"
        bad=1
    elif test -z "$(layer_of "$to")" || test "$(layer_of "$to")" -ge "$(layer_of "$from")"; then
        echo "$file: $from/ must not include \"$header\""
        bad=1
    fi
done <<END
$(grep -rHo --include='*.[ch]' '^#[ ]*include "[^"]*"' base cluster numa kernels model gpu \
    store dense experts runtime cli tests bench 2>/dev/null | sed 's/#[ ]*include "//; s/"$//')
END

# libnuma's allocators put memory on another node without a word where the wanted one is outside the
# cpuset, and its counts tell nothing of what may be used: of it, only the system calls.
if grep -rnE --include='*.[ch]' '\<numa_(alloc|run_on|set_|get_|bind|available|num_|max_|node_|distance)' \
    base numa kernels model gpu store dense experts runtime cli tests bench; then
    echo "libnuma's own functions are not to be used"
    bad=1
fi

# MPI is the program's: the library can be used where there is none.
if grep -rn --include='*.[ch]' '#[ ]*include <mpi' base numa kernels model gpu store dense experts runtime cli \
    tests bench || grep -rn --include='*.[ch]' '"cluster/' base numa kernels model gpu store dense experts runtime; then
    echo "only cluster/ knows MPI, and only the program knows cluster/"
    bad=1
fi

if test $seen -lt 10; then
    echo "only $seen includes found: the check looks in the wrong place"
    exit 1
fi
exit $bad
