bundled_sources += runtime/bundled.c runtime/bundled.h runtime/gpu-find.c
core_sources += \
	runtime/adapt.c runtime/adapt.h \
	runtime/batch.c runtime/batch-seq.c runtime/batch-seq.h \
	runtime/doctor.c \
	runtime/engine.c runtime/engine.h \
	runtime/generate.c \
	runtime/mode.c runtime/mode.h \
	runtime/gpu.c runtime/gpu.h runtime/gpu-engine.h runtime/gpu-impl.h \
	runtime/gpu-cache.c runtime/gpu-dense.c runtime/gpu-step.c \
	runtime/params.c runtime/params.h \
	runtime/place.c runtime/place.h \
	runtime/plan.c runtime/plan.h runtime/plan-print.c \
	runtime/profile.c \
	runtime/render.c \
	runtime/sampler.c runtime/sampler.h \
	runtime/session.c \
	runtime/share.c \
	runtime/stats.c \
	runtime/step.c runtime/step.h \
	runtime/text-stream.c runtime/text-stream.h \
	runtime/tune-probe.c runtime/tune-probe.h \
	runtime/tune.c runtime/tune.h \
	runtime/watch.c runtime/watch.h
