/* UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef NUMOE_BASE_UTF8_H
#define NUMOE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { UTF8_INVALID = 0, UTF8_CUT = -1 };

/* The character at the start of s [n]: its length 1..4; UTF8_CUT where s ends inside a sequence
 * that could still become valid; UTF8_INVALID where it cannot. n must not be 0. */
static inline int utf8_length(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned lo = 0x80, hi = 0xbf;
    int len;

    if (u[0] < 0x80) {
        return 1;
    } else if (u[0] >= 0xc2 && u[0] <= 0xdf) {
        len = 2;
    } else if (u[0] >= 0xe0 && u[0] <= 0xef) {
        len = 3;
        lo = u[0] == 0xe0 ? 0xa0 : lo; /* overlong */
        hi = u[0] == 0xed ? 0x9f : hi; /* surrogates */
    } else if (u[0] >= 0xf0 && u[0] <= 0xf4) {
        len = 4;
        lo = u[0] == 0xf0 ? 0x90 : lo; /* overlong */
        hi = u[0] == 0xf4 ? 0x8f : hi; /* above U+10FFFF */
    } else {
        return UTF8_INVALID;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) {
            return UTF8_CUT;
        }
        if (u[i] < lo || u[i] > hi) {
            return UTF8_INVALID;
        }
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

/* Bytes of the longest valid start of s [n]. */
static inline size_t utf8_valid_bytes(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        int len = utf8_length(s + i, n - i);
        if (len <= 0) {
            break;
        }
        i += (size_t)len;
    }
    return i;
}

/* The code point of a valid sequence of len bytes. */
static inline uint32_t utf8_decode(const char *s, int len)
{
    const unsigned char *u = (const unsigned char *)s;

    switch (len) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3:
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

/* Writes a code point (no surrogate, at most U+10FFFF) to out [4]; returns its length. */
static inline int utf8_encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Makes text something that a terminal shows on one line: '?' in place of every byte of a control
 * character (C0, DEL, C1) or of what is not UTF-8. */
static inline void utf8_make_plain(char *text)
{
    size_t n = strlen(text), i = 0;

    while (i < n) {
        int len = utf8_length(text + i, n - i);
        uint32_t c = len > 0 ? utf8_decode(text + i, len) : 0;
        size_t n_byte = len > 0 ? (size_t)len : 1;
        if (c < 0x20 || (c >= 0x7f && c < 0xa0)) {
            memset(text + i, '?', n_byte);
        }
        i += n_byte;
    }
}

#endif
