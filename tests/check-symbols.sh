#!/bin/sh
# libnumoe.so exports exactly the functions that the public header declares, under a version.
srcdir=${NUMOE_TEST_SRCDIR:-$(dirname "$0")/..}
library=${NUMOE_TEST_BUILDDIR:-.}/.libs/libnumoe.so
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

if ! test -f "$library"; then
    echo "$library: no shared library in this build"
    exit 77
fi

sed -n 's/^NUMOE_API .*[ *]\(numoe_[a-z_0-9]*\)(.*/\1/p' "$srcdir/include/numoe/numoe.h" |
    sort >"$work/declared"
nm -D --defined-only --with-symbol-versions "$library" |
    sed -n 's/^[0-9a-f]* [A-Z] \([^ ]*\)$/\1/p' | grep -v '^NUMOE_[0-9.]*@*NUMOE_[0-9.]*$' |
    grep -v '^NUMOE_[0-9.]*$' | sort >"$work/exported"

status=0
if grep -v '@@NUMOE_' "$work/exported"; then
    echo "the symbols above carry no version"
    status=1
fi
sed 's/@.*//' "$work/exported" | sort >"$work/names"
if ! test -s "$work/declared" || ! diff "$work/declared" "$work/names" >"$work/diff"; then
    echo "declared in numoe.h (<) but not exported, or exported (>) but not declared:"
    grep '^[<>]' "$work/diff"
    status=1
fi
exit $status
