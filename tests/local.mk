# A unit test is one line here and one Criterion file, tests/unit/test-X.c. Other
# programs print TAP themselves.
unit_tests += tests/unit/test-base
unit_tests += tests/unit/test-format tests/unit/test-kern tests/unit/test-kern-vector
unit_tests += tests/unit/test-gguf tests/unit/test-model
unit_tests += tests/unit/test-topo tests/unit/test-pool tests/unit/test-arena
unit_tests += tests/unit/test-step

unit_tests += tests/unit/test-sampler tests/unit/test-engine

script_tests += tests/check-layers.sh tests/check-symbols.sh

EXTRA_DIST += tests/data tests/unit/testdata.h tests/unit/kern-data.h
EXTRA_DIST += tests/unit/ggufbuild.h tests/unit/tinymodel.h
EXTRA_DIST += tests/unit/npy.h tests/unit/rig.h

# ------------------------------------------------------------------ programs without Criterion
plain_tests = tests/stress/stress-pool

# ------------------------------------------------------------------ how they run
AM_TESTS_ENVIRONMENT = \
	NUMOE_TEST_SRCDIR='$(abs_top_srcdir)'; export NUMOE_TEST_SRCDIR; \
	NUMOE_TEST_BUILDDIR='$(abs_top_builddir)'; export NUMOE_TEST_BUILDDIR;

check_PROGRAMS += $(plain_tests)
TESTS += $(plain_tests)

LDADD = libnumoe-core.la $(test_libs)
test_libs =
if HAVE_CRITERION
AM_CPPFLAGS += $(CRITERION_CFLAGS)
test_libs += $(CRITERION_LIBS)
check_PROGRAMS += $(unit_tests)
TESTS += $(unit_tests)
else
script_tests += tests/no-criterion.sh
endif
TESTS += $(script_tests)
EXTRA_DIST += $(script_tests) tests/no-criterion.sh tests/run-test

# Programs speak TAP, scripts have an exit status (77: skipped).
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run-test
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
TEST_EXTENSIONS = .sh
SH_LOG_COMPILER = $(SHELL)
