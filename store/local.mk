core_sources += \
	store/act.c store/act.h \
	store/placement.c \
	store/plan.c store/plan.h \
	store/store.c store/store.h \
	store/unit.c \
	store/weight.c store/weight.h
