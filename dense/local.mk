core_sources += \
	dense/attn.c dense/attn-block.c dense/attn-block.h dense/attn-gqa.c dense/attn-mla.c \
	dense/dense.c dense/dense.h dense/state.h \
	dense/kv.c dense/kv.h dense/kv-chunk.h \
	dense/rope.c dense/rope.h \
	dense/stream.c
