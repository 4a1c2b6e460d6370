core_sources += \
	gpu/exchange.c gpu/exchange.h \
	gpu/plan.c gpu/plan.h \
	gpu/program.c gpu/program.h \
	gpu/segment.c gpu/segment.h \
	gpu/serve.c gpu/serve.h

# Programs of their own, which an engine starts. They know the parts that an engine knows.
numoelibexecdir = $(libexecdir)/numoe
numoelibexec_PROGRAMS = numoe-gpu-emu
numoe_gpu_emu_SOURCES = gpu/common/sizes.h gpu/emu/emu.h gpu/emu/fault.c gpu/emu/main.c gpu/emu/work.c
numoe_gpu_emu_LDADD = libnumoe-core.la

# ------------------------------------------------------------------ CUDA
cuda_kernels = gpu/cuda/attention.cu gpu/cuda/attention-mla.cu gpu/cuda/gemm.cu gpu/cuda/gemv.cu gpu/cuda/hand.cu \
	gpu/cuda/matrix.cu gpu/cuda/router.cu gpu/cuda/vector.cu
cuda_headers = gpu/cuda/attention.cuh gpu/cuda/decode.cuh gpu/cuda/decode-any.cuh gpu/cuda/internal.cuh gpu/cuda/kernels.h \
	gpu/cuda/tables.h
EXTRA_DIST += $(cuda_kernels) $(cuda_headers)

if HAVE_CUDA
numoelibexec_PROGRAMS += numoe-gpu-cuda
cuda_objects = $(cuda_kernels:.cu=.o)
CLEANFILES += $(cuda_objects)
numoe_gpu_cuda_SOURCES = gpu/common/sizes.h gpu/cuda/engine.h gpu/cuda/load.c gpu/cuda/main.c gpu/cuda/step.c
numoe_gpu_cuda_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)
numoe_gpu_cuda_LDADD = $(cuda_objects) libnumoe-core.la $(CUDA_LIBS)

$(cuda_objects): $(cuda_headers)

# Kernels and program on a GPU; the second also on any other program that speaks the exchange.
check-gpu: numoe-gpu-cuda tests/gpu/test-kernels tests/gpu/test-program
	tests/gpu/test-kernels
	NUMOE_TEST_SRCDIR=$(top_srcdir) tests/gpu/test-program ./numoe-gpu-cuda

EXTRA_PROGRAMS += tests/gpu/test-kernels
tests_gpu_test_kernels_SOURCES = tests/gpu/test-kernels.c
tests_gpu_test_kernels_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)
tests_gpu_test_kernels_LDADD = $(cuda_objects) libnumoe-core.la $(CUDA_LIBS)
endif

SUFFIXES = .cu
.cu.o:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) $(NVCC_ARCH) -t 0 -O3 -std=c++17 -Xcompiler -Wall,-Wextra \
	    -I$(top_srcdir) -I$(top_srcdir)/include -c -o $@ $<

.PHONY: check-gpu
