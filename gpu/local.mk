core_sources += \
	gpu/exchange.c gpu/exchange.h
