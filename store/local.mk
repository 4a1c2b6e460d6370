core_sources += \
	store/act.c store/act.h \
	store/imatrix.c \
	store/kernel-probe.c store/kernel-probe.h \
	store/load.c store/load.h \
	store/machine-probe.c store/machine.c \
	store/placement-check.c \
	store/placement-cost.c \
	store/placement-json.c \
	store/placement-shard.c \
	store/placement-work.c store/placement-work.h \
	store/placement.c store/placement.h \
	store/reader.c store/reader.h \
	store/replica.c store/replica.h \
	store/shape.c store/shape.h \
	store/stats-report.c \
	store/stats.c store/stats.h \
	store/store.c store/store.h \
	store/unit.c \
	store/view.c \
	store/worker-probe.c store/worker-probe.h \
	store/weight.c store/weight.h
