core_sources += \
	store/store.h \
	store/weight.h
