dist_man_MANS = docs/numoe.1 docs/numoe-batch.1

# Of the other subcommands: their help as pages.
made_pages = docs/numoe-run.1 docs/numoe-chat.1 docs/numoe-eval.1 docs/numoe-plan.1 \
	docs/numoe-topo.1 docs/numoe-doctor.1 docs/numoe-inspect.1 docs/numoe-experts.1 \
	docs/numoe-bench.1 docs/numoe-scale.1
nodist_man_MANS = $(made_pages)
CLEANFILES += $(made_pages)
EXTRA_DIST += docs/make-man
$(made_pages): numoe$(EXEEXT) docs/make-man
	$(AM_V_GEN)$(MKDIR_P) docs && command=$(@:docs/numoe-%.1=%) && \
	    $(SHELL) $(srcdir)/docs/make-man ./numoe$(EXEEXT) $$command >$@.part && mv $@.part $@

bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = docs/completion/numoe

hpcdir = $(docdir)/hpc
dist_hpc_DATA = docs/hpc/README.md docs/hpc/one-node.sbatch docs/hpc/two-sockets.sbatch \
	docs/hpc/array.sbatch docs/hpc/many-nodes.sbatch docs/hpc/mpi.sbatch docs/hpc/one-node.pbs

examplesdir = $(docdir)/examples
dist_examples_DATA = docs/examples/generate.c

# A program of a host, with nothing but the public header and the library.
check_PROGRAMS += docs/examples/generate
docs_examples_generate_LDADD = libnumoe.la

EXTRA_DIST += docs/ARCHITECTURE.md docs/exchange.md docs/expert-stats.md
