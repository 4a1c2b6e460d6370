core_sources += \
	experts/dispatch.c experts/dispatch.h \
	experts/experts.c experts/experts.h experts/state.h \
	experts/given.c \
	experts/peers.c experts/peers.h \
	experts/router.c experts/router.h \
	experts/run.c \
	experts/spread.c experts/spread.h
