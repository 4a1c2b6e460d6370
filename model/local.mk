core_sources += \
	model/chat.c model/chat.h \
	model/chat-builtin.c \
	model/detokenizer.c \
	model/arch.c model/arch.h \
	model/arch-deepseek2.c \
	model/arch-glm4moe.c \
	model/arch-gpt-oss.c \
	model/arch-granitemoe.c \
	model/arch-llama.c \
	model/arch-olmoe.c \
	model/arch-qwen2.c \
	model/arch-qwen3.c \
	model/bind.c model/bind.h \
	model/geometry.c model/geometry.h \
	model/gguf.c model/gguf.h \
	model/gguf-header.c model/gguf-header.h \
	model/gguf-value.c \
	model/inspect.c \
	model/jinja.h model/jinja-impl.h model/jinja-parse.h \
	model/jinja-builtin.c \
	model/jinja-eval.c \
	model/jinja-filter.c model/jinja-filter-list.c \
	model/jinja-format.c \
	model/jinja-lex.c \
	model/jinja-method.c model/jinja-method-list.c \
	model/jinja-op.c \
	model/jinja-parse.c model/jinja-parse-expr.c model/jinja-parse-stmt.c \
	model/jinja-run.c \
	model/jinja-string.c \
	model/jinja-test.c \
	model/jinja-text.c \
	model/jinja-unicode.c model/jinja-unicode-table.h \
	model/jinja-value.c \
	model/model.c model/model.h \
	model/slot.c \
	model/nfc.c model/nfc.h model/nfc-table.h \
	model/tokenizer.c model/tokenizer.h model/tokenizer-impl.h \
	model/tokenizer-bpe.c \
	model/tokenizer-pre.c \
	model/tokenizer-special.c \
	model/tokenizer-spm.c

EXTRA_DIST += model/fable/README.md model/fable/hf model/fable/train model/nfc-table.py \
	model/jinja-unicode.py
