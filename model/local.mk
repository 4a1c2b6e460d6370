core_sources += \
	model/chat.h \
	model/gguf.h \
	model/model.h \
	model/tokenizer.h

EXTRA_DIST += model/fable/README.md model/fable/hf model/fable/train
