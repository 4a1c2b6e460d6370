/* Typed look-ups in the metadata of a GGUF file: integers of any width convert where the value
 * fits, floats of both widths, and nothing else converts. What a key means is for the caller.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/gguf.h"

static uint64_t load(const unsigned char *p, unsigned n_bytes)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < n_bytes; i++) {
        x |= (uint64_t)p[i] << (8 * i);
    }
    return x;
}

/* Element i, sign-extended; false where the value is not of an integer type. */
static bool load_integer(const struct gguf_value *v, uint64_t i, uint64_t *bits, bool *negative)
{
    static const struct {
        unsigned char n_bytes;
        bool is_signed;
    } shape[GGUF_N_TYPE] = {
        [GGUF_U8] = {1, false},  [GGUF_U16] = {2, false},  [GGUF_U32] = {4, false},
        [GGUF_U64] = {8, false}, [GGUF_BOOL] = {1, false}, [GGUF_I8] = {1, true},
        [GGUF_I16] = {2, true},  [GGUF_I32] = {4, true},   [GGUF_I64] = {8, true},
    };
    unsigned n_bytes = shape[v->type].n_bytes;
    if (i >= v->n || n_bytes == 0) {
        return false;
    }
    uint64_t x = load(v->data + i * n_bytes, n_bytes);
    uint64_t sign = UINT64_C(1) << (8 * n_bytes - 1);
    *negative = shape[v->type].is_signed && (x & sign) != 0;
    *bits = *negative ? (x ^ sign) - sign : x;
    return true;
}

bool gguf_value_u64(const struct gguf_value *v, uint64_t i, uint64_t *out)
{
    uint64_t bits;
    bool negative;
    if (!load_integer(v, i, &bits, &negative) || negative) {
        return false;
    }
    *out = bits;
    return true;
}

bool gguf_value_f64(const struct gguf_value *v, uint64_t i, double *out)
{
    uint64_t bits;
    bool negative;
    if (load_integer(v, i, &bits, &negative)) {
        *out = negative ? (double)(int64_t)bits : (double)bits;
        return true;
    }
    if (i < v->n && v->type == GGUF_F32) {
        union {
            uint32_t u;
            float f;
        } x = {(uint32_t)load(v->data + i * 4, 4)};
        *out = (double)x.f;
        return true;
    }
    if (i < v->n && v->type == GGUF_F64) {
        union {
            uint64_t u;
            double d;
        } x = {load(v->data + i * 8, 8)};
        *out = x.d;
        return true;
    }
    return false;
}

/* NULL in *value where the key is absent and not required. */
static numoe_status look_up(const struct gguf *g, const char *key, bool required,
                            const struct gguf_value **value, numoe_error *err)
{
    *value = gguf_find(g, key);
    if (!*value && required) {
        return status_fail(err, NUMOE_E_FILE_MODEL, "%s: key %s is missing", g->part[0].path, key);
    }
    return NUMOE_OK;
}

static numoe_status fail_value(const struct gguf *g, const char *key, const struct gguf_value *v,
                               const char *expected, numoe_error *err)
{
    return status_fail(err, NUMOE_E_FILE_MODEL,
                       "%s: key %s: offset %" PRIu64 ": the value must be %s", g->part[0].path, key,
                       v->offset, expected);
}

numoe_status gguf_get_u32(const struct gguf *g, const char *key, bool required, uint32_t *out,
                          numoe_error *err)
{
    const struct gguf_value *v;
    uint64_t x;
    FORWARD_IF(look_up(g, key, required, &v, err));
    if (!v) {
        return NUMOE_OK;
    }
    if (v->is_array || v->type == GGUF_BOOL || !gguf_value_u64(v, 0, &x) || x > UINT32_MAX) {
        return fail_value(g, key, v, "a whole number from 0 to 4294967295", err);
    }
    *out = (uint32_t)x;
    return NUMOE_OK;
}

numoe_status gguf_get_f32(const struct gguf *g, const char *key, bool required, float *out,
                          numoe_error *err)
{
    const struct gguf_value *v;
    double x;
    FORWARD_IF(look_up(g, key, required, &v, err));
    if (!v) {
        return NUMOE_OK;
    }
    bool is_float = v->type == GGUF_F32 || v->type == GGUF_F64;
    if (v->is_array || !is_float || !gguf_value_f64(v, 0, &x) || !isfinite((float)x)) {
        return fail_value(g, key, v, "a finite float", err);
    }
    *out = (float)x;
    return NUMOE_OK;
}

numoe_status gguf_get_bool(const struct gguf *g, const char *key, bool required, bool *out,
                           numoe_error *err)
{
    const struct gguf_value *v;
    FORWARD_IF(look_up(g, key, required, &v, err));
    if (!v) {
        return NUMOE_OK;
    }
    if (v->is_array || v->type != GGUF_BOOL || v->data[0] > 1) {
        return fail_value(g, key, v, "a bool", err);
    }
    *out = v->data[0] == 1;
    return NUMOE_OK;
}

numoe_status gguf_get_string(const struct gguf *g, const char *key, bool required,
                             struct gguf_string *out, numoe_error *err)
{
    const struct gguf_value *v;
    FORWARD_IF(look_up(g, key, required, &v, err));
    if (!v) {
        return NUMOE_OK;
    }
    if (v->is_array || v->type != GGUF_STRING) {
        return fail_value(g, key, v, "a string", err);
    }
    *out = v->str[0];
    return NUMOE_OK;
}
