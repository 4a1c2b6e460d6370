core_sources += \
	numa/arena.h \
	numa/bandwidth.h \
	numa/pool.h \
	numa/topo.h
