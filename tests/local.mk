# A unit test is one line here and one Criterion file, tests/unit/test-X.c. Other
# programs print TAP themselves.
unit_tests += tests/unit/test-base
unit_tests += tests/unit/test-format tests/unit/test-kern tests/unit/test-kern-vector
unit_tests += tests/unit/test-tokenizer tests/unit/test-chat tests/unit/test-jinja
unit_tests += tests/unit/test-gguf tests/unit/test-model
unit_tests += tests/unit/test-topo tests/unit/test-pool tests/unit/test-arena
unit_tests += tests/unit/test-topo-report tests/unit/test-doctor
unit_tests += tests/unit/test-dense tests/unit/test-experts tests/unit/test-step tests/unit/test-store tests/unit/test-placement
unit_tests += tests/unit/test-reader tests/unit/test-peers tests/unit/test-adapt tests/unit/test-watch

unit_tests += tests/unit/test-sampler tests/unit/test-engine tests/unit/test-batch tests/unit/test-tune
unit_tests += tests/unit/test-stats tests/unit/test-lanes tests/unit/test-profile tests/unit/test-plan \
	tests/unit/test-exchange tests/unit/test-gpu

script_tests += tests/check-layers.sh tests/check-symbols.sh tests/check-versions.sh
script_tests += tests/cli/errors.sh tests/cli/run.sh tests/cli/chat.sh tests/cli/eval.sh tests/cli/plan.sh \
	tests/cli/interrupt.sh tests/cli/terminal.sh tests/cli/bundled.sh
script_tests += tests/cli/topo.sh tests/cli/cgroup.sh tests/cli/files.sh tests/cli/gpu.sh tests/cli/tune.sh
script_tests += tests/cli/batch.sh tests/cli/batch-kill.sh tests/cli/batch-mpi.sh
script_tests += tests/cli/experts.sh tests/cli/bench.sh tests/cli/scale.sh
EXTRA_DIST += tests/cli/lib.sh tests/cli/batch-lib.sh

EXTRA_DIST += tests/data tests/unit/testdata.h tests/unit/kern-data.h
EXTRA_DIST += tests/unit/ggufbuild.h tests/unit/tinymodel.h
EXTRA_DIST += tests/unit/npy.h tests/unit/rig.h tests/unit/madeup.h
EXTRA_DIST += tests/unit/segment.h tests/unit/sequences.h tests/unit/distance.h

# ------------------------------------------------------------------ instruction sets in C
# --with-emulated-isa: kernels are compiled against these headers.
EXTRA_DIST += tests/emulate/immintrin.h tests/emulate/avx512.h tests/emulate/amx.h
if EMULATED_ISA
core_sources += tests/emulate/amx.c
endif

# ------------------------------------------------------------------ programs without Criterion
plain_tests = tests/stress/stress-pool tests/stress/stress-exchange tests/stress/stress-replicas \
	tests/gpu/test-program tests/fuzz/replay-gguf tests/fuzz/replay-tokenizer \
	tests/fuzz/replay-jinja tests/fuzz/replay-imatrix tests/fuzz/replay-exchange tests/fuzz/replay-memo

tests_fuzz_replay_gguf_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-gguf.c
tests_fuzz_replay_gguf_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-gguf"'
EXTRA_DIST += tests/fuzz/corpus-gguf

tests_fuzz_replay_tokenizer_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-tokenizer.c
tests_fuzz_replay_tokenizer_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-tokenizer"'
EXTRA_DIST += tests/fuzz/corpus-tokenizer

tests_fuzz_replay_jinja_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-jinja.c
tests_fuzz_replay_jinja_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-jinja"'
EXTRA_DIST += tests/fuzz/corpus-jinja

tests_fuzz_replay_imatrix_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-imatrix.c
tests_fuzz_replay_imatrix_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-imatrix"'
EXTRA_DIST += tests/fuzz/corpus-imatrix

tests_fuzz_replay_exchange_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-exchange.c
tests_fuzz_replay_exchange_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-exchange"'
EXTRA_DIST += tests/fuzz/corpus-exchange

tests_fuzz_replay_memo_SOURCES = tests/fuzz/replay.c tests/fuzz/fuzz-memo.c
tests_fuzz_replay_memo_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_CORPUS='"tests/fuzz/corpus-memo"'
EXTRA_DIST += tests/fuzz/corpus-memo

# Writes the seeds of the corpus.
EXTRA_PROGRAMS += tests/fuzz/make-corpus-gguf tests/fuzz/make-corpus-tokenizer tests/fuzz/make-corpus-exchange

# ------------------------------------------------------------------ fuzzing
FUZZ_SECONDS = 60
fuzz_programs = tests/fuzz/fuzz-gguf tests/fuzz/fuzz-tokenizer tests/fuzz/fuzz-jinja \
	tests/fuzz/fuzz-imatrix tests/fuzz/fuzz-exchange tests/fuzz/fuzz-memo

if FUZZING
EXTRA_PROGRAMS += $(fuzz_programs)
tests_fuzz_fuzz_gguf_SOURCES = tests/fuzz/fuzz-gguf.c
tests_fuzz_fuzz_gguf_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)
tests_fuzz_fuzz_tokenizer_SOURCES = tests/fuzz/fuzz-tokenizer.c
tests_fuzz_fuzz_tokenizer_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)
tests_fuzz_fuzz_jinja_SOURCES = tests/fuzz/fuzz-jinja.c
tests_fuzz_fuzz_jinja_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)
tests_fuzz_fuzz_imatrix_SOURCES = tests/fuzz/fuzz-imatrix.c
tests_fuzz_fuzz_imatrix_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)
tests_fuzz_fuzz_exchange_SOURCES = tests/fuzz/fuzz-exchange.c
tests_fuzz_fuzz_exchange_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)
tests_fuzz_fuzz_memo_SOURCES = tests/fuzz/fuzz-memo.c
tests_fuzz_fuzz_memo_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_FLAGS)

# What is found anew stays in the build, in tests/fuzz/fuzz-X.found.
fuzz: $(fuzz_programs)
	@for program in $(fuzz_programs); do \
	    mkdir -p $$program.found && \
	    $$program -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	        -artifact_prefix=$$program.found/ -print_final_stats=1 \
	        $$program.found $(srcdir)/tests/fuzz/corpus-$${program##*/fuzz-} || exit 1; \
	done
else
fuzz:
	@echo 'fuzzing needs a build of its own: configure --enable-fuzzing CC=clang' && exit 1
endif

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

# ------------------------------------------------------------------ machines with several nodes
# Emulated by QEMU; minutes, so not part of `make check`. Needs no root.
EXTRA_PROGRAMS += tests/numa/guest
tests_numa_guest_LDADD = libnumoe-core.la
EXTRA_DIST += tests/numa/run-guest tests/numa/check-numa

.PHONY: check-numa
check-numa: tests/numa/guest numoe$(EXEEXT)
	$(AM_V_at)$(top_srcdir)/tests/numa/check-numa $(abs_top_builddir)/tests/numa/guest

# ------------------------------------------------------------------ batch jobs
# Not part of `make check`: 200 requests, 20 kills; a real Slurm (as root).
EXTRA_DIST += tests/check-slurm

.PHONY: check-batch check-slurm
check-batch: numoe$(EXEEXT)
	$(AM_V_at)$(AM_TESTS_ENVIRONMENT) BATCH_REQUESTS=200 BATCH_KILLS=20 \
	    $(SHELL) $(top_srcdir)/tests/cli/batch-kill.sh
	$(AM_V_at)$(AM_TESTS_ENVIRONMENT) BATCH_REQUESTS=200 BATCH_KILLS=20 \
	    $(SHELL) $(top_srcdir)/tests/cli/batch-mpi.sh || test $$? -eq 77
check-slurm: numoe$(EXEEXT)
	$(AM_V_at)$(AM_TESTS_ENVIRONMENT) $(SHELL) $(top_srcdir)/tests/check-slurm $(abs_top_builddir) || \
	    test $$? -eq 77
