core_sources += \
	gpu/exchange.c gpu/exchange.h \
	gpu/plan.c gpu/plan.h \
	gpu/program.c gpu/program.h \
	gpu/segment.c gpu/segment.h
