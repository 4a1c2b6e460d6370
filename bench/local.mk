# Benches are built by `make bench`, not by `all`. Each is one file: bench/X from bench/X.c.
bench_programs += bench/attention bench/barrier bench/gemm bench/gemv bench/make-model bench/profile-cost bench/throughput
EXTRA_DIST += bench/inputs.h bench/limits.h bench/matrices.h bench/peaks.h

EXTRA_PROGRAMS += $(bench_programs)

bench: $(bench_programs)
EXTRA_DIST += bench/compare.py bench/batch.py bench/layer.py bench/peers.py bench/perplexity.py bench/gpu.sh bench/predict
