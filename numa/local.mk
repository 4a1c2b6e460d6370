core_sources += \
	numa/allowed.c numa/allowed.h \
	numa/arena.c numa/arena.h \
	numa/audit.c numa/audit.h \
	numa/bandwidth.c numa/bandwidth.h \
	numa/cgroup.c numa/cgroup.h \
	numa/doctor-gpu.c numa/doctor-report.c numa/doctor.c numa/doctor.h \
	numa/gate.c numa/gate.h \
	numa/pages.c numa/pages.h \
	numa/pool.c numa/pool.h numa/pool_gate.h \
	numa/room.c numa/room.h \
	numa/share.c \
	numa/source.c numa/source.h \
	numa/strand.c numa/strand.h \
	numa/topo-report.c numa/topo-report.h numa/topo-svg.c \
	numa/topo-view.c numa/topo-view.h \
	numa/topo-share.c numa/topo.c numa/topo.h \
	numa/world.c numa/world.h
