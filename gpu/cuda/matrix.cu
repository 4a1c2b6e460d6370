/* Where the bytes of a weight are in VRAM, and how they get there. */
#include "gpu/cuda/decode.cuh"
#include "gpu/cuda/internal.cuh"

#define PLANE_ALIGN 256

/* How a block is cut: bytes of each piece, in the order of the file. Pieces are such that the
 * decoders' loads are aligned. */
struct cut {
    uint32_t format;
    unsigned elems, bytes[CUDA_MAX_PLANE];
};

static const cut cuts[] = {
    {FORMAT_F32, 1, {4}},
    {FORMAT_F16, 1, {2}},
    {FORMAT_BF16, 1, {2}},
    {FORMAT_Q4_0, 32, {2, 16}},
    {FORMAT_Q4_1, 32, {4, 16}},
    {FORMAT_Q5_0, 32, {2, 4, 16}},
    {FORMAT_Q5_1, 32, {4, 4, 16}},
    {FORMAT_Q8_0, 32, {2, 32}},
    {FORMAT_IQ4_NL, 32, {2, 16}},
    {FORMAT_MXFP4, 32, {1, 16}},
    {FORMAT_Q2_K, 256, {16, 64, 4}},
    {FORMAT_Q3_K, 256, {32, 64, 12, 2}},
    {FORMAT_Q4_K, 256, {16, 128}},
    {FORMAT_Q5_K, 256, {16, 32, 128}},
    {FORMAT_Q6_K, 256, {128, 64, 16, 2}},
    {FORMAT_IQ4_XS, 256, {8, 128}},
    {FORMAT_IQ2_XXS, 256, {2, 64}},
    {FORMAT_IQ2_XS, 256, {2, 64, 8}},
    {FORMAT_IQ2_S, 256, {2, 32, 32, 8, 8}},
    {FORMAT_IQ3_XXS, 256, {2, 64, 32}},
    {FORMAT_IQ3_S, 256, {2, 64, 8, 32, 4}},
    {FORMAT_IQ1_S, 256, {2, 32, 16}},
    {FORMAT_IQ1_M, 256, {32, 16, 8}},
    {FORMAT_TQ1_0, 256, {52, 2}},
    {FORMAT_TQ2_0, 256, {64, 2}},
};

static const cut *cut_of(uint32_t format)
{
    for (const cut &c : cuts) {
        if (c.format == format) {
            return &c;
        }
    }
    return NULL;
}

unsigned cuda_block_elems(uint32_t format)
{
    const cut *c = cut_of(format);
    return c == NULL ? 0 : c->elems;
}

static size_t plane_bytes(const cut *c, int i, size_t n_block)
{
    return (c->bytes[i] * n_block + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN;
}

extern "C" size_t cuda_matrix_bytes(uint32_t format, size_t n_elem)
{
    const cut *c = cut_of(format);
    size_t bytes = 0;
    for (int i = 0; c != NULL && i < CUDA_MAX_PLANE; i++) {
        bytes += plane_bytes(c, i, n_elem / c->elems);
    }
    return bytes;
}

extern "C" void cuda_matrix_place(cuda_matrix *w, void *data)
{
    const cut *c = cut_of(w->format);
    const size_t n_block = (size_t)w->n_mat * w->n_row * (w->k / c->elems);
    const uint8_t *at = (const uint8_t *)data;
    w->n_block = w->k / c->elems;
    for (int i = 0; i < CUDA_MAX_PLANE; i++) {
        w->plane[i] = c->bytes[i] > 0 ? at : NULL;
        at += plane_bytes(c, i, n_block);
    }
}

extern "C" cuda_matrix cuda_matrix_one(const cuda_matrix *w, unsigned i)
{
    const cut *c = cut_of(w->format);
    cuda_matrix one = *w;
    one.n_mat = 1;
    for (int j = 0; j < CUDA_MAX_PLANE && c->bytes[j] > 0; j++) {
        one.plane[j] += (size_t)i * w->n_row * w->n_block * c->bytes[j];
    }
    return one;
}

struct fill_args {
    planes to;
    unsigned bytes[CUDA_MAX_PLANE], offset[CUDA_MAX_PLANE], block_bytes;
};

/* Grid y: planes. Bytes of a plane are written side by side. */
static __global__ void fill(const fill_args a, const uint8_t *raw, size_t first, size_t n_block)
{
    const unsigned i = blockIdx.y, bytes = a.bytes[i];
    uint8_t *to = (uint8_t *)a.to.p[i] + first * bytes;
    const uint8_t *from = raw + a.offset[i];
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < n_block * bytes;
         at += (size_t)gridDim.x * blockDim.x) {
        to[at] = from[at / bytes * a.block_bytes + at % bytes];
    }
}

extern "C" void cuda_matrix_fill(const cuda_matrix *w, const void *raw, size_t first,
                                 size_t n_block, cudaStream_t s)
{
    const cut *c = cut_of(w->format);
    fill_args a = {};
    unsigned n = 0;
    for (; n < CUDA_MAX_PLANE && c->bytes[n] > 0; n++) {
        a.to.p[n] = w->plane[n];
        a.bytes[n] = c->bytes[n];
        a.offset[n] = a.block_bytes;
        a.block_bytes += c->bytes[n];
    }
    if (n == 1) {
        cudaMemcpyAsync((uint8_t *)w->plane[0] + first * a.bytes[0], raw, n_block * a.bytes[0],
                        cudaMemcpyDeviceToDevice, s);
    } else if (n_block > 0) {
        const size_t blocks = (n_block * a.block_bytes / n + 255) / 256;
        fill<<<dim3((unsigned)(blocks < 8192 ? blocks : 8192), n), 256, 0, s>>>(
            a, (const uint8_t *)raw, first, n_block);
    }
}
