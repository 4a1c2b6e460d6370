core_sources += \
	model/chat.h \
	model/gguf.c model/gguf.h \
	model/gguf-header.c model/gguf-header.h \
	model/gguf-value.c \
	model/model.h \
	model/tokenizer.h

EXTRA_DIST += model/fable/README.md model/fable/hf model/fable/train
