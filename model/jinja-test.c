/* Tests of Jinja templates: `is defined` and so on.
 */
#include "model/jinja-impl.h"

#define TEST(name, expr)                                                                           \
    static numoe_status test_##name(struct jinja *j, const struct jinja_call *c,                   \
                                    struct jinja_value *out)                                       \
    {                                                                                              \
        const struct jinja_value *v = &c->self;                                                    \
        (void)j;                                                                                   \
        *out = jinja_bool(expr);                                                                   \
        return NUMOE_OK;                                                                           \
    }

TEST(defined, v->kind != JINJA_UNDEFINED)
TEST(undefined, v->kind == JINJA_UNDEFINED)
TEST(none, v->kind == JINJA_NONE)
TEST(boolean, v->kind == JINJA_BOOL)
TEST(true, v->kind == JINJA_BOOL && v->b)
TEST(false, v->kind == JINJA_BOOL && !v->b)
TEST(integer, v->kind == JINJA_INT)
TEST(float, v->kind == JINJA_FLOAT)
TEST(number, jinja_is_number(v))
TEST(string, v->kind == JINJA_STRING)
TEST(mapping, v->kind == JINJA_DICT)
/* Undefined is an empty sequence, which can even be called. */
TEST(sequence, v->kind == JINJA_STRING || v->kind == JINJA_DICT || v->kind == JINJA_UNDEFINED ||
                   (v->kind >= JINJA_LIST && v->kind <= JINJA_RANGE))
TEST(iterable, v->kind == JINJA_STRING || v->kind == JINJA_DICT || v->kind == JINJA_UNDEFINED ||
                   v->kind == JINJA_LOOP || jinja_is_list(v))
TEST(callable, v->kind >= JINJA_MACRO || v->kind == JINJA_UNDEFINED)
TEST(escaped, v->kind == JINJA_STRING && v->safe)
TEST(filter, v->kind == JINJA_STRING && jinja_find_filter(v->text) != NULL)
TEST(test, v->kind == JINJA_STRING && jinja_find_test(v->text) != NULL)
/* One object: for numbers and texts, which Python may share or not, an equal one. */
static numoe_status test_sameas(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    bool same = c->self.kind == c->arg[0].kind;

    if (same && (jinja_is_list(&c->self) || c->self.kind >= JINJA_DICT)) {
        same = c->self.list == c->arg[0].list;
    } else if (same) {
        FORWARD_IF(jinja_equal(j, &c->self, &c->arg[0], &same));
    }
    *out = jinja_bool(same);
    return NUMOE_OK;
}

static numoe_status test_eq(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    bool equal;

    FORWARD_IF(jinja_equal(j, &c->self, &c->arg[0], &equal));
    *out = jinja_bool(equal);
    return NUMOE_OK;
}

static numoe_status test_ne(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    FORWARD_IF(test_eq(j, c, out));
    out->b = !out->b;
    return NUMOE_OK;
}

static numoe_status test_in(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    bool found;

    FORWARD_IF(jinja_contains(j, &c->arg[0], &c->self, &found));
    *out = jinja_bool(found);
    return NUMOE_OK;
}

#define TEST_ORDER(name, op)                                                                       \
    static numoe_status test_##name(struct jinja *j, const struct jinja_call *c,                   \
                                    struct jinja_value *out)                                       \
    {                                                                                              \
        int order;                                                                                 \
        FORWARD_IF(jinja_order(j, &c->self, &c->arg[0], &order));                                  \
        *out = jinja_bool(order op 0);                                                             \
        return NUMOE_OK;                                                                           \
    }

TEST_ORDER(lt, <)
TEST_ORDER(le, <=)
TEST_ORDER(gt, >)
TEST_ORDER(ge, >=)

/* self % by == rest */
static numoe_status test_remainder(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value by, int64_t rest, struct jinja_value *out)
{
    const struct jinja_value wanted = jinja_int(rest);
    struct jinja_value left;
    bool equal;

    FORWARD_IF(jinja_binary(j, '%', &c->self, &by, &left));
    FORWARD_IF(jinja_equal(j, &left, &wanted, &equal));
    *out = jinja_bool(equal);
    return NUMOE_OK;
}

static numoe_status test_divisibleby(struct jinja *j, const struct jinja_call *c,
                                     struct jinja_value *out)
{
    return test_remainder(j, c, c->arg[0], 0, out);
}

static numoe_status test_even(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return test_remainder(j, c, jinja_int(2), 0, out);
}

static numoe_status test_odd(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return test_remainder(j, c, jinja_int(2), 1, out);
}

/* The method islower() or isupper() of the value's text. */
static numoe_status test_case(struct jinja *j, const struct jinja_call *c, struct jinja_text method,
                              struct jinja_value *out)
{
    const struct jinja_builtin *builtin;
    struct jinja_value text = jinja_string(NULL, 0);

    FORWARD_IF(jinja_str(j, &c->self, &text.text));
    jinja_find_method(&text, method, &builtin);
    return jinja_call_builtin(j, builtin, &text, c->args, out);
}

static numoe_status test_lower(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return test_case(j, c, JINJA_TEXT("islower"), out);
}

static numoe_status test_upper(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return test_case(j, c, JINJA_TEXT("isupper"), out);
}

const struct jinja_builtin jinja_tests[] = {
    {"!=", "other", test_ne},
    {"<", "other", test_lt},
    {"<=", "other", test_le},
    {"==", "other", test_eq},
    {">", "other", test_gt},
    {">=", "other", test_ge},
    {"boolean", "", test_boolean},
    {"callable", "", test_callable},
    {"defined", "", test_defined},
    {"divisibleby", "num", test_divisibleby},
    {"eq", "other", test_eq},
    {"equalto", "other", test_eq},
    {"escaped", "", test_escaped},
    {"even", "", test_even},
    {"false", "", test_false},
    {"filter", "", test_filter},
    {"float", "", test_float},
    {"ge", "other", test_ge},
    {"greaterthan", "other", test_gt},
    {"gt", "other", test_gt},
    {"in", "seq", test_in},
    {"integer", "", test_integer},
    {"iterable", "", test_iterable},
    {"le", "other", test_le},
    {"lessthan", "other", test_lt},
    {"lower", "", test_lower},
    {"lt", "other", test_lt},
    {"mapping", "", test_mapping},
    {"ne", "other", test_ne},
    {"none", "", test_none},
    {"number", "", test_number},
    {"odd", "", test_odd},
    {"sameas", "other", test_sameas},
    {"sequence", "", test_sequence},
    {"string", "", test_string},
    {"test", "", test_test},
    {"true", "", test_true},
    {"undefined", "", test_undefined},
    {"upper", "", test_upper},
    {NULL, NULL, NULL},
};
