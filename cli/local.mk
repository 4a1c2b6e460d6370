numoe_programs += numoe
numoe_sources += \
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
	cli/main.c \
	cli/options.c \
	cli/output.c \
	cli/plan.c \
	cli/report.c \
	cli/run.c \
	cli/text.c \
	cli/topo.c
