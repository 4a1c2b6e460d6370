#!/bin/sh
# What a GPU does for a model of DeepSeek-V3's geometry (1 dense and 2 MoE layers, Q4_K experts, all
# else Q8_0): kernels alone, the GPU program with its hand-offs answered at once, and the whole
# with experts on the CPU. Needs a GPU, a build with numoe-gpu-cuda, and 17 GB for the model.
#
#     bench/gpu.sh BUILD [MODEL]      MODEL is made if it is not there; default /dev/shm/v3-3.gguf
set -u
build=${1:?usage: bench/gpu.sh BUILD [MODEL]}
model=${2:-/dev/shm/v3-3.gguf}
source=$(cd "$(dirname "$0")/.." && pwd)
program=$(cd "$build" && pwd)/numoe-gpu-cuda
prompt=$(mktemp)
trap 'rm -f "$prompt"' EXIT INT TERM

make -C "$build" numoe numoe-gpu-cuda tests/gpu/test-kernels tests/gpu/test-program \
    bench/make-model >/dev/null || exit 1

echo '== kernels'
"$build/tests/gpu/test-kernels" --measure | grep -E '^(not ok|measure|#)'
echo '== program against references'
NUMOE_TEST_SRCDIR=$source "$build/tests/gpu/test-program" "$program" | grep -E '^(not ok|#)'

test -f "$model" || "$build/bench/make-model" deepseek-v3 Q4_K-Q8_0 --layers 3 -o "$model" || exit 1
echo '== steps of the program alone'
"$build/tests/gpu/test-program" --time "$program" "$model"

i=0
while [ $i -lt 320 ]; do
    printf 'word %d ' $((i * 7919 % 5000))
    i=$((i + 1))
done >"$prompt"
echo '== with experts on the CPU'
for threads in $(($(nproc) / 2)) $(($(nproc) * 3 / 4)) $(($(nproc) - 2)) "$(nproc)"; do
    echo "$threads threads"
    "$build/numoe" run -m "$model" -n 64 --ignore-eog --temp 0 -t "$threads" -c 4096 --kv f16 \
        -f "$prompt" --gpu "$program" --gpu-experts 0 2>&1 >/dev/null |
        grep -E '^(gpu|prompt|generated|memory|numoe)'
done
