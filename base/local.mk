core_sources += \
	include/numoe/numoe.h \
	base/cache.h \
	base/clock.h \
	base/hash.h \
	base/knob.c base/knob.h \
	base/log.c base/log.h \
	base/median.h \
	base/mem.c base/mem.h \
	base/memo.c base/memo.h \
	base/probe.c base/probe.h \
	base/status.c base/status.h \
	base/utf8.h
