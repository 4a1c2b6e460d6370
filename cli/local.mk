numoe_programs += numoe
numoe_sources += \
	cli/batch-begin.c \
	cli/batch-job.c \
	cli/batch-progress.c \
	cli/batch-request.c \
	cli/batch-result.c \
	cli/batch-ranks.h cli/batch-talk.c \
	cli/batch-team.c cli/batch-team.h \
	cli/batch-work.c \
	cli/batch.c cli/batch.h \
	cli/bench.c \
	cli/chat.c \
	cli/cli.h \
	cli/doctor.c \
	cli/eval-logits.c \
	cli/eval-perplexity.c \
	cli/eval.c cli/eval.h \
	cli/experts.c \
	cli/files.c \
	cli/inspect.c \
	cli/interrupt.c \
	cli/journal.c cli/journal.h \
	cli/limits.c \
	cli/main.c \
	cli/options.c \
	cli/output.c \
	cli/plan.c \
	cli/profile.c \
	cli/report.c \
	cli/run.c \
	cli/scale-report.c cli/scale.c cli/scale.h \
	cli/text.c \
	cli/topo.c
