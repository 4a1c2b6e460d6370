/* What the files of the Jinja interpreter share: values, the tree of a template, the state of a
 * rendering. Everything lives in arenas that are freed as a whole: one for a template, one for a
 * rendering.
 *
 * Texts are UTF-8 with a length; where a character is meant, a byte that is not part of valid UTF-8
 * counts as one.
 */
#ifndef NUMOE_MODEL_JINJA_IMPL_H
#define NUMOE_MODEL_JINJA_IMPL_H

#include <string.h>

#include "model/jinja.h"

/* ------------------------------------------------------------------ memory (jinja-value.c) */

struct jinja_block;

struct jinja_arena {
    struct jinja_block *last;
    size_t used_bytes, max_bytes; /* over all blocks */
};

/* Zeroed, aligned for anything. */
numoe_status jinja_alloc(struct jinja_arena *a, size_t n, size_t elem_bytes, void *out,
                         numoe_error *err);
void jinja_arena_fini(struct jinja_arena *a);

/* ------------------------------------------------------------------ values (jinja-value.c) */

enum jinja_kind {
    JINJA_MISSING, /* no value: an argument that was not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_VIEW,      /* keys, values or items of a dictionary */
    JINJA_GENERATOR, /* what map, select and the like give: can be gone through once */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_METHOD,   /* bound to its object */
    JINJA_FUNCTION, /* a global one */
};

struct jinja_text {
    const char *data;
    size_t n;
};

#define JINJA_TEXT(literal) ((struct jinja_text){literal, sizeof(literal) - 1})

struct jinja_value {
    enum jinja_kind kind;
    unsigned char owner; /* UNDEFINED: what lacks the attribute `text`; MISSING for a variable */
    bool safe;           /* STRING: marked by the filter `safe` */
    union {
        bool b;
        int64_t i;
        double f;
        struct jinja_text text;  /* STRING; UNDEFINED: name */
        struct jinja_list *list; /* LIST to GENERATOR */
        struct jinja_dict *dict; /* DICT, NAMESPACE */
        struct jinja_loop *loop;
        const struct jinja_macro *macro;
        const struct jinja_method *method;
        const struct jinja_builtin *function;
    };
};

struct jinja_list {
    struct jinja_value *item; /* [n] */
    size_t n, cap;
};

struct jinja_pair {
    struct jinja_value key, value;
};

struct jinja_dict {
    struct jinja_pair *pair; /* [n], in order of insertion */
    size_t n, cap;
};

struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_dict vars;
};

struct jinja_loop {
    const struct jinja_list *list;
    size_t index0;
    bool has_changed;
    struct jinja_value changed; /* what changed() saw last */
};

struct jinja_macro {
    const struct jinja_node *node; /* MACRO or CALL_BLOCK */
    struct jinja_scope *scope;     /* where it was defined */
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_builtin *builtin; /* NULL: exists in Python, not here */
    struct jinja_text name;
};

/* ------------------------------------------------------------------ tree (jinja-parse.c) */

enum jinja_node_kind {
    /* expressions */
    JINJA_N_CONST,    /* value */
    JINJA_N_NAME,     /* text */
    JINJA_N_LIST,     /* item */
    JINJA_N_TUPLE,    /* item */
    JINJA_N_DICT,     /* item: key, value, key, value ... */
    JINJA_N_ATTR,     /* a.text */
    JINJA_N_ITEM,     /* a[b] */
    JINJA_N_SLICE,    /* a[item[0]:item[1]:item[2]], NULL where left out */
    JINJA_N_CALL,     /* a(item) */
    JINJA_N_FILTER,   /* a | text(item) */
    JINJA_N_TEST,     /* a is text(item) */
    JINJA_N_CAPTURED, /* the text of a block that a filter is applied to */
    JINJA_N_NOT,
    JINJA_N_NEG,
    JINJA_N_POS,
    JINJA_N_AND,
    JINJA_N_OR,
    JINJA_N_BINARY,  /* a op b */
    JINJA_N_CONCAT,  /* item ~ item ... */
    JINJA_N_COMPARE, /* a, then item: OPERAND */
    JINJA_N_OPERAND, /* op a */
    JINJA_N_COND,    /* b if a else c; c may be NULL */
    JINJA_N_ARG,     /* text=a; without text by position; op '*' or '**': unpacked */
    /* statements */
    JINJA_N_DATA,         /* text */
    JINJA_N_OUTPUT,       /* a */
    JINJA_N_IF,           /* a: body, orelse */
    JINJA_N_FOR,          /* a in b if c: body, orelse */
    JINJA_N_SET,          /* a = b */
    JINJA_N_SET_BLOCK,    /* a = body, through the filters b (NULL: none) */
    JINJA_N_MACRO,        /* text(item: ARG with defaults): body */
    JINJA_N_CALL_BLOCK,   /* a is the call; item and body as a macro's */
    JINJA_N_FILTER_BLOCK, /* body through b */
    JINJA_N_WITH,         /* item: ARG whose b is the target; body */
    JINJA_N_SCOPE,        /* body */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
};

/* Operators are their characters, the first in the low byte. */
#define JINJA_OP2(a, b) ((unsigned)(a) | (unsigned)(b) << 8)
enum {
    JINJA_OP_EQ = JINJA_OP2('=', '='),
    JINJA_OP_NE = JINJA_OP2('!', '='),
    JINJA_OP_LE = JINJA_OP2('<', '='),
    JINJA_OP_GE = JINJA_OP2('>', '='),
    JINJA_OP_FLOORDIV = JINJA_OP2('/', '/'),
    JINJA_OP_POW = JINJA_OP2('*', '*'),
    JINJA_OP_IN = JINJA_OP2('i', 'n'),
    JINJA_OP_NOT_IN = JINJA_OP2('n', 'i'),
};

struct jinja_nodes {
    struct jinja_node **at; /* [n] */
    size_t n, cap;
};

struct jinja_node {
    enum jinja_node_kind kind;
    unsigned line, op;
    bool negated;                                /* TEST */
    bool uses_caller, uses_varargs, uses_kwargs; /* MACRO, CALL_BLOCK */
    struct jinja_text text;
    struct jinja_value value;
    struct jinja_node *a, *b, *c;
    struct jinja_nodes item, body, orelse;
};

struct jinja_template {
    struct jinja_arena arena;
    struct jinja_nodes body;
};

enum { JINJA_MAX_PARSE_DEPTH = 300, JINJA_MAX_DEPTH = 1000, JINJA_MAX_RANGE = 100000 };

/* ------------------------------------------------------------------ tokens (jinja-lex.c) */

enum jinja_token_kind {
    JINJA_T_DATA,
    JINJA_T_BLOCK_BEGIN,
    JINJA_T_BLOCK_END,
    JINJA_T_OUTPUT_BEGIN,
    JINJA_T_OUTPUT_END,
    JINJA_T_NAME,
    JINJA_T_CONST, /* string or number */
    JINJA_T_OP,
    JINJA_T_EOF,
};

struct jinja_token {
    enum jinja_token_kind kind;
    unsigned line, op;
    struct jinja_value value; /* CONST; text of DATA and NAME */
};

/* *tokens [*n], the last one is EOF; in the arena. */
numoe_status jinja_lex(struct jinja_arena *arena, const char *text, size_t n,
                       struct jinja_token **tokens, size_t *n_tokens, numoe_error *err);

/* ------------------------------------------------------------------ a rendering */

enum jinja_flow { JINJA_GO_ON, JINJA_BREAK, JINJA_CONTINUE };

struct jinja {
    struct jinja_arena arena;
    numoe_error *err;
    unsigned line, depth;
    uint64_t steps, max_steps;
    size_t max_output_bytes;
    int64_t now_seconds;
    struct strbuf out; /* also of macros and blocks, which take their part off its end */
    struct jinja_value captured;
    enum jinja_flow flow;
    bool copies_json; /* what jinja_from_json() is given will not live as long as the rendering */
};

/* What a call is given. */
struct jinja_args {
    struct jinja_list pos;
    struct jinja_dict named;
};

/* A filter, test, method or function. params names what it takes, separated by spaces, the ones
 * after "/" need not be given; NULL: it looks at args itself. arg holds MISSING for what is not
 * given. */
enum { JINJA_MAX_PARAMS = 5 };

struct jinja_call {
    const struct jinja_builtin *builtin;
    struct jinja_value self; /* MISSING for functions */
    struct jinja_value arg[JINJA_MAX_PARAMS];
    struct jinja_args *args;
};

struct jinja_builtin {
    const char *name;
    const char *params;
    numoe_status (*run)(struct jinja *j, const struct jinja_call *c, struct jinja_value *out);
};

/* "line N: ..." */
numoe_status jinja_fail(struct jinja *j, numoe_status status, const char *fmt, ...)
    NUMOE_PRINTF(3, 4);
#define jinja_fail_input(j, ...) jinja_fail(j, NUMOE_E_INPUT, __VA_ARGS__)

/* Memory of the rendering: as jinja_alloc(). */
numoe_status jinja_new(struct jinja *j, size_t n, size_t elem_bytes, void *out);

/* Counts work of about n elementary operations. */
numoe_status jinja_charge(struct jinja *j, size_t n);
/* Counts a level of recursion; jinja_leave() goes with a successful jinja_enter() only. */
numoe_status jinja_enter(struct jinja *j);
static inline void jinja_leave(struct jinja *j)
{
    j->depth--;
}

/* ------------------------------------------------------------------ values (jinja-value.c) */

static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .b = b};
}
static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.kind = JINJA_INT, .i = i};
}
static inline struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .f = f};
}
static inline struct jinja_value jinja_string(const char *data, size_t n)
{
    return (struct jinja_value){.kind = JINJA_STRING, .text = {data, n}};
}
static inline struct jinja_value jinja_text(struct jinja_text text)
{
    return (struct jinja_value){.kind = JINJA_STRING, .text = text};
}
static inline struct jinja_value jinja_undefined(enum jinja_kind owner, struct jinja_text name)
{
    return (struct jinja_value){
        .kind = JINJA_UNDEFINED, .owner = (unsigned char)owner, .text = name};
}

static inline bool jinja_is_list(const struct jinja_value *v)
{
    return v->kind >= JINJA_LIST && v->kind <= JINJA_GENERATOR;
}
static inline bool jinja_is_number(const struct jinja_value *v)
{
    return v->kind >= JINJA_BOOL && v->kind <= JINJA_FLOAT;
}
/* Python's bool is an int. */
static inline bool jinja_is_int(const struct jinja_value *v)
{
    return v->kind == JINJA_BOOL || v->kind == JINJA_INT;
}
static inline int64_t jinja_as_int(const struct jinja_value *v)
{
    return v->kind == JINJA_BOOL ? v->b : v->i;
}
static inline double jinja_as_float(const struct jinja_value *v)
{
    return v->kind == JINJA_FLOAT ? v->f : (double)jinja_as_int(v);
}
static inline bool jinja_text_is(struct jinja_text t, const char *s)
{
    return strlen(s) == t.n && memcmp(s, t.data, t.n) == 0;
}

/* "str", "dict" and so on, for messages. */
const char *jinja_type_name(const struct jinja_value *v);
bool jinja_true(const struct jinja_value *v);
numoe_status jinja_equal(struct jinja *j, const struct jinja_value *a, const struct jinja_value *b,
                         bool *equal);
/* < 0, 0, > 0; what cannot be compared is an error. */
numoe_status jinja_order(struct jinja *j, const struct jinja_value *a, const struct jinja_value *b,
                         int *order);
/* a in b */
numoe_status jinja_contains(struct jinja *j, const struct jinja_value *b,
                            const struct jinja_value *a, bool *found);

/* A text of n bytes to be filled. */
numoe_status jinja_new_text(struct jinja *j, size_t n, char **out);
/* *out is a new list of that kind, with room for n. */
numoe_status jinja_new_list(struct jinja *j, enum jinja_kind kind, size_t n,
                            struct jinja_value *out);
numoe_status jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value v);
numoe_status jinja_new_dict(struct jinja *j, enum jinja_kind kind, struct jinja_value *out);
/* NULL where there is none; the second finds text keys without a charge for them. */
numoe_status jinja_dict_find(struct jinja *j, const struct jinja_dict *d,
                             const struct jinja_value *key, struct jinja_pair **pair);
struct jinja_pair *jinja_dict_name(const struct jinja_dict *d, struct jinja_text name);
numoe_status jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key,
                            struct jinja_value value);
void jinja_dict_remove(struct jinja_dict *d, struct jinja_pair *pair);

/* What a loop over v goes through: a list's own elements, characters, keys. Empties a generator. */
numoe_status jinja_elements(struct jinja *j, const struct jinja_value *v,
                            const struct jinja_list **list);
numoe_status jinja_from_json(struct jinja *j, const json_t *json, struct jinja_value *out);

/* ------------------------------------------------------------------ texts (jinja-text.c) */

/* str(v) and repr(v), appended to j->out. */
numoe_status jinja_write(struct jinja *j, const struct jinja_value *v);
numoe_status jinja_write_repr(struct jinja *j, const struct jinja_value *v);
/* str(v) */
numoe_status jinja_str(struct jinja *j, const struct jinja_value *v, struct jinja_text *out);
/* The end of j->out from start on becomes a text of its own. */
numoe_status jinja_take(struct jinja *j, size_t start, struct jinja_text *out);
numoe_status jinja_put(struct jinja *j, struct jinja_text text); /* to j->out, within limits */

enum { JINJA_FLOAT_BYTES = 40 };
/* Python's repr() of a float; returns its length. */
size_t jinja_float_text(double f, char text[JINJA_FLOAT_BYTES]);

struct jinja_json_form {
    bool ascii, sort_keys;
    struct jinja_text item_sep, key_sep;
    bool has_indent;
    struct jinja_text indent;
};
numoe_status jinja_write_json(struct jinja *j, const struct jinja_json_form *form, unsigned level,
                              const struct jinja_value *v);

/* Characters. */
size_t jinja_char_bytes(const char *s, size_t n); /* n must not be 0 */
size_t jinja_n_char(struct jinja_text t);
/* The byte where character i begins; t.n where there are fewer. */
size_t jinja_char_at(struct jinja_text t, size_t i);
/* The code point of a character, a wrong byte's is above U+10FFFF. */
uint32_t jinja_code(const char *s, size_t n);
/* Position of what in t from `from` on, or SIZE_MAX. */
size_t jinja_find_text(struct jinja_text t, struct jinja_text what, size_t from);
numoe_status jinja_rfind_text(struct jinja *j, struct jinja_text t, struct jinja_text what,
                              size_t *at); /* the last one */

/* ------------------------------------------------------------------ Unicode (jinja-unicode.c) */

bool jinja_is_space(uint32_t c);
bool jinja_is_printable(uint32_t c);
bool jinja_is_alpha(uint32_t c);
bool jinja_is_digit(uint32_t c);
bool jinja_is_numeric(uint32_t c); /* fractions too */
bool jinja_is_cased(uint32_t c);
bool jinja_is_lower(uint32_t c);
bool jinja_is_upper(uint32_t c);
enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE };
/* Up to 3 code points. */
unsigned jinja_map_case(uint32_t c, enum jinja_case to, uint32_t out[3]);
struct jinja_text jinja_strip_space(struct jinja_text t, bool left, bool right);

/* ------------------------------------------------------------------ evaluation (jinja-eval.c,
 * -op.c) */

numoe_status jinja_eval(struct jinja *j, struct jinja_scope *s, const struct jinja_node *n,
                        struct jinja_value *out);
numoe_status jinja_args(struct jinja *j, struct jinja_scope *s, const struct jinja_nodes *nodes,
                        struct jinja_args *args);
numoe_status jinja_call_value(struct jinja *j, const struct jinja_value *f, struct jinja_args *args,
                              struct jinja_value *out);
numoe_status jinja_call_builtin(struct jinja *j, const struct jinja_builtin *b,
                                const struct jinja_value *self, struct jinja_args *args,
                                struct jinja_value *out);
/* a.name and a[key], undefined where there is none. */
numoe_status jinja_get_attr(struct jinja *j, const struct jinja_value *a, struct jinja_text name,
                            struct jinja_value *out);
numoe_status jinja_get_item(struct jinja *j, const struct jinja_value *a,
                            const struct jinja_value *key, struct jinja_value *out);
/* The error of an undefined value that something is done with. */
numoe_status jinja_fail_undefined(struct jinja *j, const struct jinja_value *v);
numoe_status jinja_binary(struct jinja *j, unsigned op, const struct jinja_value *a,
                          const struct jinja_value *b, struct jinja_value *out);
numoe_status jinja_slice(struct jinja *j, const struct jinja_value *a,
                         const struct jinja_value bound[3], struct jinja_value *out);

/* `format % values` and the filter. */
numoe_status jinja_format(struct jinja *j, struct jinja_text form, const struct jinja_value *values,
                          struct jinja_value *out);

/* Statements (jinja-run.c). */
numoe_status jinja_run(struct jinja *j, struct jinja_scope *s, const struct jinja_nodes *body);
numoe_status jinja_call_macro(struct jinja *j, const struct jinja_macro *m, struct jinja_args *args,
                              struct jinja_value *out);

/* ------------------------------------------------------------------ builtins */

/* Arguments of builtins, `none` where they are missing or None; an error names the builtin and what
 * it needs. */
#define JINJA_REQUIRED ((struct jinja_text){NULL, 0}) /* None is an error */
numoe_status jinja_arg_int(struct jinja *j, const struct jinja_call *c, unsigned i, int64_t none,
                           int64_t *out);
numoe_status jinja_arg_text(struct jinja *j, const struct jinja_call *c, unsigned i,
                            struct jinja_text none, struct jinja_text *out);
static inline bool jinja_has_arg(const struct jinja_call *c, unsigned i)
{
    return c->arg[i].kind != JINJA_MISSING && c->arg[i].kind != JINJA_NONE;
}
/* len(v) */
numoe_status jinja_length(struct jinja *j, const struct jinja_value *v, int64_t *n);
/* A tuple (a, b). */
numoe_status jinja_pair(struct jinja *j, struct jinja_value a, struct jinja_value b,
                        struct jinja_value *out);
enum jinja_style { JINJA_STYLE_UPPER, JINJA_STYLE_LOWER, JINJA_STYLE_TITLE, JINJA_STYLE_CAPITAL };
numoe_status jinja_restyle(struct jinja *j, struct jinja_text t, enum jinja_style style,
                           struct jinja_value *out);
/* count < 0: all. */
numoe_status jinja_replace(struct jinja *j, struct jinja_text t, struct jinja_text from,
                           struct jinja_text to, int64_t count, struct jinja_value *out);
/* Without the given characters at its ends. */
numoe_status jinja_strip(struct jinja *j, struct jinja_text t, const struct jinja_text *chars,
                         bool left, bool right, struct jinja_value *out);
numoe_status jinja_splitlines(struct jinja *j, struct jinja_text t, bool keep,
                              struct jinja_value *out);
/* v.a.b.0 of a path "a.b.0" (or an index); what is not there gives `none` unless that is MISSING.
 */
numoe_status jinja_get_path(struct jinja *j, const struct jinja_value *v,
                            const struct jinja_value *path, const struct jinja_value *none,
                            struct jinja_value *out);
/* str.format() */
numoe_status jinja_format_fields(struct jinja *j, struct jinja_text form, struct jinja_args *args,
                                 struct jinja_value *out);
/* A number as int() and float() of Python read it: INT, FLOAT, or MISSING where it is none. */
struct jinja_value jinja_parse_number(struct jinja_text t, int base);

/* Tables end with a name NULL. */
extern const struct jinja_builtin jinja_tests[], jinja_text_filters[], jinja_list_filters[],
    jinja_text_methods[], jinja_dict_methods[], jinja_list_methods[], jinja_tuple_methods[],
    jinja_loop_methods[];

/* NULL where there is none of that name. */
const struct jinja_builtin *jinja_find_filter(struct jinja_text name);
const struct jinja_builtin *jinja_find_test(struct jinja_text name);
const struct jinja_builtin *jinja_find_function(struct jinja_text name);
/* Methods of texts, dictionaries, lists, loops: false if v's type has no such method in Python;
 * *builtin is NULL for one that is not supported. */
bool jinja_find_method(const struct jinja_value *v, struct jinja_text name,
                       const struct jinja_builtin **builtin);

#endif
