# Part of the program, not of the library: several processes for one job.
numoe_sources += cluster/cluster.h
if HAVE_MPI
noinst_LTLIBRARIES += libcluster.la
libcluster_la_SOURCES = cluster/mpi.c
libcluster_la_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CPPFLAGS)
libcluster_la_LIBADD = $(MPI_LIBS)
else
numoe_sources += cluster/none.c
endif
