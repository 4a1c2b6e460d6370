#!/bin/sh
# A folder includes only from folders of a lower layer, or from itself; folders of one layer do not
# know each other. Only the public header is open to all.
cd "${NUMOE_TEST_SRCDIR:-$(dirname "$0")/..}" || exit 1

layer_of()
{
    case $1 in
    base) echo 0 ;;
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
for file in $(find base numa kernels model gpu store dense experts runtime cli tests bench \
    -name '*.[ch]'); do
    from=${file%%/*}
    for header in $(sed -n 's/^#[ ]*include "\([^"]*\)".*/\1/p' "$file"); do
        seen=$((seen + 1))
        to=${header%%/*}
        test "$header" = numoe/numoe.h && continue
        if ! test -f "$header"; then
            echo "$file: include \"$header\" does not name its folder"
            bad=1
            continue
        fi
        test "$to" = "$from" && continue
        if test -z "$(layer_of "$to")" || test "$(layer_of "$to")" -ge "$(layer_of "$from")"; then
            echo "$file: $from/ must not include \"$header\""
            bad=1
        fi
    done
done

if test $seen -eq 0; then
    echo "no includes found: the check looks in the wrong place"
    exit 1
fi
exit $bad
