core_sources += \
	experts/dispatch.c experts/dispatch.h \
	experts/experts.c experts/experts.h experts/state.h \
	experts/given.c \
	experts/router.c experts/router.h \
	experts/run.c
