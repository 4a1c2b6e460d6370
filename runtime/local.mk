core_sources += \
	runtime/step.h
