/* The hand-off: kernels read and write the exchange's pinned memory themselves, so that a layer
 * costs neither copies nor calls. Bells are raised by the last block that is done, and waited for
 * by one block; the others wait for a word in device memory. */
#include <cuda_runtime.h>

#include "gpu/cuda/internal.cuh"

#define HAND_THREADS 256

static __device__ __forceinline__ void ring(uint64_t *bell, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(bell), "l"(value) : "memory");
}

static __device__ __forceinline__ uint64_t look_sys(const uint64_t *word)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(word) : "memory");
    return v;
}

static __device__ __forceinline__ uint64_t look_gpu(const uint64_t *word)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(word) : "memory");
    return v;
}

/* True in thread 0 of the block that comes last; all its writes before are visible to the host. */
static __device__ bool is_last(unsigned *count)
{
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) {
        return false;
    }
    const unsigned n = gridDim.x * gridDim.y;
    const bool last = atomicInc(count, n - 1) == n - 1; /* wraps to zero */
    __threadfence_system();
    return last;
}

static __device__ void copy_out(const float *from, float *to, size_t n)
{
    const size_t i0 = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    if (((uintptr_t)from | (uintptr_t)to | n * 4) % 16 == 0) {
        for (size_t i = i0; i < n / 4; i += step) {
            ((float4 *)to)[i] = ((const float4 *)from)[i];
        }
    } else {
        for (size_t i = i0; i < n; i += step) {
            to[i] = from[i];
        }
    }
}

static __global__ void hand_out(const cuda_hand h, const float *x, const int32_t *ids,
                                const float *weights, const int32_t *slot_of)
{
    const uint64_t number = h.step->first_hand + h.i;
    const unsigned slot = (unsigned)(number % 2), n = h.step->n_token;
    copy_out(x, h.x[slot], (size_t)n * h.k);
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; ids != NULL && i < n * h.n_used;
         i += gridDim.x * blockDim.x) {
        const int32_t id = ids[i];
        h.ids[slot][i] = slot_of != NULL && slot_of[id] >= 0 ? -1 - id : id;
        h.weights[slot][i] = weights[i];
    }
    if (is_last(h.count)) {
        ring(h.bell_x, number);
    }
}

static unsigned blocks_of(size_t n)
{
    const size_t b = (n + 4 * HAND_THREADS - 1) / (4 * HAND_THREADS);
    return (unsigned)(b < 64 ? b : 64);
}

extern "C" void cuda_hand_out(const cuda_hand *h, const float *x, const int32_t *ids,
                              const float *weights, const int32_t *slot_of, unsigned n,
                              cudaStream_t s)
{
    hand_out<<<blocks_of((size_t)h->k * n), HAND_THREADS, 0, s>>>(*h, x, ids, weights, slot_of);
}

/* Grid: (elements, tokens), a few blocks each. Block (0, 0) comes first and waits for the host. */
static __global__ void hand_in(const cuda_hand h, cuda_combine_args p)
{
    const uint64_t number = h.step->first_hand + h.i;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0 && blockIdx.y == 0) {
            while (look_sys(h.bell_y) < number) {
            }
            asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(h.arrived), "l"(number)
                         : "memory");
        } else {
            while (look_gpu(h.arrived) < number) {
                __nanosleep(50);
            }
        }
    }
    __syncthreads();
    p.host = h.y[number % 2];
    for (unsigned t = blockIdx.y; t < h.step->n_token; t += gridDim.y) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.k;
             i += gridDim.x * blockDim.x) {
            combine_one(p, t, i);
        }
    }
}

extern "C" void cuda_hand_in(const cuda_hand *h, const cuda_combine_args *p, cudaStream_t s)
{
    const unsigned bx = (p->k + HAND_THREADS - 1) / HAND_THREADS;
    hand_in<<<dim3(bx < 32 ? bx : 32, p->n < 4 ? p->n : 4), HAND_THREADS, 0, s>>>(*h, *p);
}

static __global__ void slots(const int32_t *ids, const int32_t *slot_of, unsigned n, int32_t *slot)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        slot[i] = slot_of[ids[i]];
    }
}

extern "C" void cuda_slots(const int32_t *ids, const int32_t *slot_of, unsigned n, int32_t *slot,
                           cudaStream_t s)
{
    if (n > 0) {
        slots<<<(n + 255) / 256, 256, 0, s>>>(ids, slot_of, n, slot);
    }
}

/* Grid: (elements, rows). */
static __global__ void gather_rows(const float *x, const int32_t *order, unsigned n,
                                   unsigned n_used, unsigned k, float *out)
{
    const unsigned row = blockIdx.y;
    const float *from = row < n ? x + (size_t)(order[row] / (int)n_used) * k : NULL;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < k; i += gridDim.x * blockDim.x) {
        out[(size_t)row * k + i] = from != NULL ? from[i] : 0;
    }
}

extern "C" void cuda_gather(const float *x, const int32_t *order, unsigned n, unsigned n_out,
                            unsigned n_used, unsigned k, float *out, cudaStream_t s)
{
    if (n_out > 0) {
        gather_rows<<<dim3((k + 1023) / 1024, n_out), 256, 0, s>>>(x, order, n, n_used, k, out);
    }
}

static __global__ void scatter_rows(const float *y, const int32_t *order, unsigned k, float *out)
{
    const float *from = y + (size_t)blockIdx.y * k;
    float *to = out + (size_t)order[blockIdx.y] * k;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < k; i += gridDim.x * blockDim.x) {
        to[i] = from[i];
    }
}

extern "C" void cuda_scatter(const float *y, const int32_t *order, unsigned n, unsigned k,
                             float *out, cudaStream_t s)
{
    if (n > 0) {
        scatter_rows<<<dim3((k + 1023) / 1024, n), 256, 0, s>>>(y, order, k, out);
    }
}

struct two {
    float *p[2];
};

static __global__ void results(const cuda_step *step, const float *rows, unsigned k, const two to,
                               unsigned *count, uint64_t *bell)
{
    copy_out(rows, to.p[step->number % 2], (size_t)step->n_logits * k);
    if (is_last(count)) {
        ring(bell, step->number);
    }
}

/* Grid: (elements, layers). The bell of the result, or of the last hand-off, comes after it. */
static __global__ void routes(const cuda_routes_args p)
{
    const unsigned slot = (unsigned)(p.step->number % 2), n = p.step->n_token * p.n_used;
    const size_t at = (size_t)blockIdx.y * p.stride;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        p.to_ids[slot][at + i] = p.ids[at + i];
        p.to_weights[slot][at + i] = p.weights[at + i];
    }
}

extern "C" void cuda_routes(const cuda_routes_args *p, unsigned n_layer, unsigned n, cudaStream_t s)
{
    if (n_layer > 0) {
        routes<<<dim3(blocks_of((size_t)n * p->n_used), n_layer), HAND_THREADS, 0, s>>>(*p);
    }
}

extern "C" void cuda_results(const cuda_step *step, const float *rows, unsigned k,
                             float *const to[2], unsigned *count, uint64_t *bell, cudaStream_t s)
{
    const two t = {{to[0], to[1]}};
    results<<<blocks_of(k), HAND_THREADS, 0, s>>>(step, rows, k, t, count, bell);
}
