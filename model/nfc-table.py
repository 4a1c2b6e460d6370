#!/usr/bin/env python3
"""Writes nfc-table.h, what normalisation to NFC has to know of Unicode: nfc-table.py > nfc-table.h"""
import sys
import unicodedata as u

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xD7A4)


def decomposition(c):
    d = u.decomposition(chr(c))
    if not d or d.startswith('<') or c in HANGUL:
        return None
    return [int(x, 16) for x in d.split()]


def composes(c, pair):
    return len(pair) == 2 and u.normalize('NFC', ''.join(map(chr, pair))) == chr(c)


def rows(items, form, width=100):
    line = '   '
    for item in items:
        text = ' ' + form(item) + ','
        if len(line) + len(text) > width:
            print(line)
            line = '   '
        line += text
    print(line)


parts = {c: d for c in CODES if (d := decomposition(c))}
pairs = sorted((d[0], d[1], c) for c, d in parts.items() if composes(c, d))
seconds = {b for _, b, _ in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))

# Everything that a text in NFC may hold anywhere without a look at its neighbours is left out.
classes = []
for c in CODES:
    ccc = u.combining(chr(c))
    if ccc or c in seconds or (c in parts and u.normalize('NFC', chr(c)) != chr(c)):
        if classes and classes[-1][1] == c - 1 and classes[-1][2] == ccc:
            classes[-1][1] = c
        else:
            classes.append([c, c, ccc])

print(f'/* Made by nfc-table.py from Unicode {u.unidata_version}. */')
print('/* clang-format off */')
print('static const struct nfc_class classes[] = {')
rows(classes, lambda x: '{0x%x, 0x%x, %d}' % tuple(x))
print('};\n\nstatic const struct nfc_parts parts[] = {')
rows(sorted(parts.items()), lambda x: '{0x%x, 0x%x, 0x%x}' % (x[0], x[1][0], (x[1] + [0])[1]))
print('};\n\nstatic const struct nfc_pair pairs[] = {')
rows(pairs, lambda x: '{0x%x, 0x%x, 0x%x}' % x)
print('};')
print('%d classes, %d parts, %d pairs' % (len(classes), len(parts), len(pairs)), file=sys.stderr)
