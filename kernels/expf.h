/* The exponential of all kernels. Every instruction set does these steps in this order (products
 * and the sums they go into fused where it fuses), so that they differ by rounding alone:
 *
 *     x = min(max(x, EXPF_LOW), EXPF_HIGH)     NaN stays
 *     n = x * EXPF_LOG2E rounded to nearest even
 *     r = (x - n * EXPF_LN2_HIGH) - n * EXPF_LN2_LOW
 *     p = (((C6 r + C5) r + C4) r + C3) r + C2
 *     y = (p * r^2 + r) + 1
 *     result = y * 2^(n >> 1) * 2^(n - (n >> 1))
 *
 * The polynomial is the minimax one of relative error 4e-9 on |r| <= ln 2 / 2; the whole is within
 * 2 units in the last place. The result is subnormal or 0 below -87.3, infinite above 88.8. n *
 * LN2_HIGH is exact. The scaling is in two steps since 2^n itself may be out of range; it rounds
 * once. */
#ifndef NUMOE_KERNELS_EXPF_H
#define NUMOE_KERNELS_EXPF_H

#include <stdint.h>

#define EXPF_LOW      (-104.0f)
#define EXPF_HIGH     89.0f
#define EXPF_LOG2E    0x1.715476p+0f
#define EXPF_LN2_HIGH 0x1.62e4p-1f
#define EXPF_LN2_LOW  0x1.7f7d1cp-20f
#define EXPF_C2       0x1.fffffcp-2f
#define EXPF_C3       0x1.555490p-3f
#define EXPF_C4       0x1.5558f4p-5f
#define EXPF_C5       0x1.123a6cp-7f
#define EXPF_C6       0x1.6a2352p-10f

/* Adding and subtracting this rounds |x| < 2^22 to the nearest even integer, which is also in the
 * low bits of the sum. */
#define EXPF_ROUND 0x1.8p23f

static inline float kern_expf(float x)
{
    union bits {
        float f;
        uint32_t u;
    };
    x = x < EXPF_LOW ? EXPF_LOW : x;
    x = x > EXPF_HIGH ? EXPF_HIGH : x;
    union bits rounded = {x * EXPF_LOG2E + EXPF_ROUND}, round = {EXPF_ROUND};
    float n = rounded.f - EXPF_ROUND;
    float r = x - n * EXPF_LN2_HIGH;
    r = r - n * EXPF_LN2_LOW;
    float p = EXPF_C6 * r + EXPF_C5;
    p = p * r + EXPF_C4;
    p = p * r + EXPF_C3;
    p = p * r + EXPF_C2;
    float y = (p * (r * r) + r) + 1;
    uint32_t exponent = rounded.u - round.u; /* two's complement, any bits for NaN */
    uint32_t half = (uint32_t)((int32_t)exponent >> 1);
    union bits scale1 = {.u = (half + 127) << 23}, scale2 = {.u = (exponent - half + 127) << 23};
    return y * scale1.f * scale2.f;
}

#endif
