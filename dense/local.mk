core_sources += \
	dense/kv.h
