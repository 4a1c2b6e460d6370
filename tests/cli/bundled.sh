#!/bin/sh
# The bundled model: found without being named, by the program and by a host program; but an installed
# numoe does not look into the tree that it was built from.
. "$(dirname "$0")/lib.sh"
unset NUMOE_MODEL
build=${NUMOE_TEST_BUILDDIR:-.}
example=$build/docs/examples/generate

"$numoe" run -q --chat -n 8 --temp 0 -p 'Tell me a story.' >"$tmp/out" 2>"$tmp/err" </dev/null ||
    complain "without a model: $(cat "$tmp/err")"
test -s "$tmp/out" || complain 'no text'
expect 0 '' "$numoe" plan

# ---- the example
"$example" >"$tmp/example" 2>"$tmp/err" </dev/null || complain "example: $(cat "$tmp/err")"
"$numoe" run -q --temp 0 --repeat-penalty 1 -n 100 -p 'Once upon a time there was a poor miller' \
    >"$tmp/out" </dev/null
same "$tmp/out" "$tmp/example" 'example and program'
grep -Eq '^[0-9]+ tokens in ' "$tmp/err" || complain "example: $(cat "$tmp/err")"
"$example" "$tmp/nowhere.gguf" >"$tmp/out" 2>"$tmp/err" </dev/null && complain 'example: no such model'
grep -q '^generate: .*nowhere.gguf: .*No such file' "$tmp/err" || complain "example: $(cat "$tmp/err")"

# ---- as if installed: program and library lie elsewhere
if test -f "$build/.libs/libnumoe.so.0"; then
    cp "$build/.libs/numoe" "$build/.libs/libnumoe.so.0" "$tmp"
else
    cp "$numoe" "$tmp"
fi
LD_LIBRARY_PATH=$tmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
"$tmp/numoe" run -q -n 1 -p x >"$tmp/out" 2>"$tmp/err" </dev/null
got=$?
if grep -q 'bundled model' "$tmp/err"; then
    test $got -eq 2 || complain "installed: status $got"
    grep -Eq '^numoe: the bundled model is not there \(looked for /[^ ]*/numoe/fable-moe-Q4_K_M.gguf\): ' \
        "$tmp/err" || complain "installed: $(cat "$tmp/err")"
else
    # numoe is installed on this machine, with its model
    test $got -eq 0 || complain "installed: $(cat "$tmp/err")"
fi

exit $bad
