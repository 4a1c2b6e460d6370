#!/usr/bin/env python3
"""Writes jinja-unicode-table.h, what str methods of Python know of Unicode:
jinja-unicode.py > jinja-unicode-table.h"""
import sys
import unicodedata as u

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def rows(items, form, width=100):
    line = '   '
    for item in items:
        text = ' ' + form(item) + ','
        if len(line) + len(text) > width:
            print(line)
            line = '   '
        line += text
    print(line)


def ranges(has):
    found = []
    for c in CODES:
        if has(chr(c)):
            if found and found[-1][1] == c - 1:
                found[-1][1] = c
            else:
                found.append([c, c])
    return found


# Runs of code points, each `step` after the one before, that map to what is `delta` further.
def runs(to):
    found = []
    for c in CODES:
        m = to(chr(c))
        if len(m) != 1 or ord(m) == c:
            continue
        delta = ord(m) - c
        last = found[-1] if found else None
        if last and last[3] == delta and (c - last[1] == last[2] or
                                          (last[0] == last[1] and c - last[1] <= 2)):
            last[2] = c - last[1]
            last[1] = c
        else:
            found.append([c, c, 1, delta])
    return found


def table(kind, name, items, form):
    print(f'static const struct {kind} {name}[] = {{')
    rows(items, form)
    print('};\n')
    return f'{len(items)} {name}'


pair = lambda x: '{0x%x, 0x%x}' % tuple(x)
run = lambda x: '{0x%x, 0x%x, %d, %d}' % tuple(x)
print(f'/* Made by jinja-unicode.py from Unicode {u.unidata_version}. */')
print('/* clang-format off */')
sizes = [
    table('unicode_range', 'not_printable', ranges(lambda c: not c.isprintable()), pair),
    table('unicode_range', 'alpha', ranges(str.isalpha), pair),
    table('unicode_range', 'digit', ranges(str.isdigit), pair),
    table('unicode_range', 'numeric', ranges(str.isnumeric), pair),
    # what title() and the like take for a letter with case
    table('unicode_range', 'cased', ranges(lambda c: ('a' + c + 'a').title()[-1] == 'a'), pair),
    # small and capital letters that have no other form
    table('unicode_range', 'small', ranges(lambda c: c.islower() and c.upper() == c), pair),
    table('unicode_range', 'capital', ranges(lambda c: c.isupper() and c.lower() == c), pair),
    table('unicode_run', 'upper', runs(str.upper), run),
    table('unicode_run', 'lower', runs(str.lower), run),
    table('unicode_run', 'title', runs(str.title), run),
]
special = []
for case, to in (('JINJA_UPPER', str.upper), ('JINJA_LOWER', str.lower), ('JINJA_TITLE', str.title)):
    for c in CODES:
        m = to(chr(c))
        if len(m) > 1:
            special.append((c, case, [ord(x) for x in m] + [0] * (3 - len(m))))
sizes.append(table('unicode_special', 'special', special,
                   lambda x: '{0x%x, %s, {0x%x, 0x%x, 0x%x}}' % (x[0], x[1], *x[2])))
print(', '.join(sizes), file=sys.stderr)
