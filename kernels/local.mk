core_sources += \
	kernels/format.h \
	kernels/kern.h

# Compiled with the flags of their instruction set, where the compiler has them:
avx2_sources +=
avx512_sources +=
