core_sources += \
	kernels/format.c kernels/format.h \
	kernels/format-decode.c kernels/format-decode.h \
	kernels/format-tables.c kernels/format-tables.h \
	kernels/expf.h kernels/isa.h \
	kernels/kern.c kernels/kern.h \
	kernels/ref/attn.c kernels/ref/matmul.c kernels/ref/ref.h kernels/ref/vector.c

# Compiled with the flags of their instruction set, where the compiler has them:
avx2_sources +=
avx512_sources +=
