core_sources += \
	kernels/format.c kernels/format.h \
	kernels/format-decode.c kernels/format-decode.h \
	kernels/format-tables.c kernels/format-tables.h \
	kernels/kern.h

# Compiled with the flags of their instruction set, where the compiler has them:
avx2_sources +=
avx512_sources +=
