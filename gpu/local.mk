core_sources += \
	gpu/exchange.c gpu/exchange.h \
	gpu/plan.c gpu/plan.h \
	gpu/program.c gpu/program.h \
	gpu/segment.c gpu/segment.h \
	gpu/serve.c gpu/serve.h

# Programs of their own, which an engine starts. They know the parts that an engine knows.
numoelibexecdir = $(libexecdir)/numoe
numoelibexec_PROGRAMS = numoe-gpu-emu
numoe_gpu_emu_SOURCES = gpu/emu/emu.h gpu/emu/fault.c gpu/emu/main.c gpu/emu/work.c
numoe_gpu_emu_LDADD = libnumoe-core.la
