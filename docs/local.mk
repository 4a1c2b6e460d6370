dist_man_MANS = docs/numoe.1

examplesdir = $(docdir)/examples
dist_examples_DATA = docs/examples/generate.c

# A program of a host, with nothing but the public header and the library.
check_PROGRAMS += docs/examples/generate
docs_examples_generate_LDADD = libnumoe.la

EXTRA_DIST += docs/ARCHITECTURE.md docs/exchange.md docs/expert-stats.md
