core_sources += \
	kernels/format.c kernels/format.h \
	kernels/format-decode.c kernels/format-decode.h \
	kernels/format-tables.c kernels/format-tables.h \
	kernels/expf.h kernels/isa.h kernels/layout.h \
	kernels/kern.c kernels/kern.h kernels/select.h \
	kernels/ref/attn.c kernels/ref/matmul.c kernels/ref/ref.h kernels/ref/vector.c

# Compiled with the flags of their instruction set, where the compiler has them:
avx2_sources += \
	kernels/avx2/attention.c kernels/avx2/codebook.h \
	kernels/avx2/decode.h kernels/avx2/fill.c \
	kernels/avx2/float.c kernels/avx2/math.h kernels/avx2/matmul.h \
	kernels/avx2/parts.h kernels/avx2/quant-32.c \
	kernels/avx2/quant-book4.c kernels/avx2/quant-book8.c \
	kernels/avx2/quant-k.c kernels/avx2/quant-kmin.c kernels/avx2/sub.h \
	kernels/avx2/vector.c
avxvnni_sources += \
	kernels/avx2/fill.c kernels/avx2/quant-32.c kernels/avx2/quant-book4.c \
	kernels/avx2/quant-book8.c kernels/avx2/quant-k.c kernels/avx2/quant-kmin.c
avx512bw_sources += kernels/avx512/attention.c kernels/avx512/float.c kernels/avx512/math.h \
	kernels/avx512/vector.c
# Compiled twice, with VNNI and without:
avx512_sources += \
	kernels/avx512/decode.h kernels/avx512/fill.c kernels/avx512/matmul.h \
	kernels/avx512/parts.h kernels/avx512/quant-32.c kernels/avx512/quant-k.c \
	kernels/avx512/quant-kmin.c kernels/avx512/tiles.c
amx_sources += \
	kernels/amx/block.c kernels/amx/block.h kernels/amx/block-tiles.c kernels/amx/matmul.h \
	kernels/amx/parts.h kernels/amx/quant.c kernels/amx/tile.h kernels/amx/tiles.c

# This needs VBMI too; the table takes it where the processor has it.
avx512_vbmi_sources += kernels/avx512/codebook.c kernels/avx512/codebook.h kernels/avx512/quant-iq.c
