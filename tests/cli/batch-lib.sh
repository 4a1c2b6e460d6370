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

# random MAX: the next of a repeatable sequence, from seed, in $drawn; not printed, since a $( ) would not move on.
random()
{
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}

# same_set A B WHAT: the same results in any order.
same_set()
{
    sort "$1" >"$tmp/set.a"
    sort "$2" >"$tmp/set.b"
    cmp -s "$tmp/set.a" "$tmp/set.b" || complain "$3: the results differ: $(
        diff "$tmp/set.a" "$tmp/set.b" | cut -c 1-120 | head -n 6)"
}
