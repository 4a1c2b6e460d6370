#!/usr/bin/env python3
"""Writes what the `gguf` Python package (0.19 or later) knows about block formats to files of ours.

    make.py tables  > kernels/format-tables.c     the codebooks, as C
    make.py vectors                               random blocks with the floats they mean, *.bin here

A vector file is, little-endian: u32 number of blocks, u32 number of leading blocks with floats,
the blocks, the floats of the leading blocks, and the 64-bit FNV-1a hash of the floats of all blocks.
quantize-q8_0.bin is: u32 number of blocks, the floats, the blocks they must become.
The tests need neither Python nor the package.
"""

import os
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

# Offsets of the f16 scales of a block (IQ1_M and MXFP4 have theirs elsewhere).
F16_AT = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ1_S: [0], T.IQ1_M: [], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0],
    T.IQ3_S: [0], T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.MXFP4: [],
}
FLOATS = {T.F32: np.float32, T.F16: np.float16, T.BF16: np.uint16}


# ---------------------------------------------------------------------- tables

def grid(cls):
    cls.init_grid()
    return cls.grid.reshape(cls.grid_shape).astype(np.int8).view(np.uint8)


def c_grid(name, cls):
    entries = grid(cls)
    bits = 8 * entries.shape[1]
    values = [int.from_bytes(bytes(e), "little") for e in entries]
    per_line = 4 if bits == 64 else 8
    lines = [f"const uint{bits}_t {name}[{len(values)}] = {{"]
    for i in range(0, len(values), per_line):
        row = ", ".join(f"0x{v:0{bits // 4}x}" for v in values[i:i + per_line])
        lines.append(f"    {row},")
    return "\n".join(lines + ["};"])


def c_values(name, values):
    return f"const int8_t {name}[{len(values)}] = {{\n    {', '.join(map(str, values))},\n}};"


def write_tables():
    print("/* Codebooks of the formats, as the formats define them. Written by\n"
          " * `tests/data/format/make.py tables`; not edited by hand. */")
    print('#include "kernels/format-tables.h"\n\n/* clang-format off */')
    print("\n\n".join([
        c_values("format_values_iq4", quants.IQ4_NL.kvalues),
        c_values("format_values_fp4", quants.MXFP4.kvalues),
        c_grid("format_grid_iq2_xxs", quants.IQ2_XXS),
        c_grid("format_grid_iq2_xs", quants.IQ2_XS),
        c_grid("format_grid_iq2_s", quants.IQ2_S),
        c_grid("format_grid_iq3_xxs", quants.IQ3_XXS),
        c_grid("format_grid_iq3_s", quants.IQ3_S),
        c_grid("format_grid_iq1", quants.IQ1_S),
    ]))


# ---------------------------------------------------------------------- vectors

def scales(rng, n):
    """Finite f16: mostly of the size that models have, every eighth anything at all."""
    usual = (rng.normal(size=n) * 0.01).astype(np.float16).view(np.uint16)
    wild = rng.integers(0, 0x7c00, n, dtype=np.uint16) | rng.choice([0, 0x8000], n).astype(np.uint16)
    return np.where(np.arange(n) % 8 == 7, wild, usual)


def put_u16(blocks, at, values):
    blocks[:, at:at + 2] = values.astype("<u2").reshape(-1, 1).view(np.uint8)


def sweep_indices(rng, blocks, t):
    """Lets the codebook indices run through all values, in random order."""
    n = len(blocks)

    def permuted(size, count):
        return np.concatenate([rng.permutation(size) for _ in range(-(-count // size))])[:count]

    if t == T.IQ2_XXS:
        blocks[:, 2:66].reshape(n, 8, 8)[:, :, :4] = permuted(256, n * 32).reshape(n, 8, 4)
    elif t == T.IQ2_XS:
        signs = rng.integers(0, 128, n * 32)
        words = (permuted(512, n * 32) | signs << 9).astype("<u2").reshape(n, 32)
        blocks[:, 2:66] = words.view(np.uint8)
    elif t == T.IQ3_XXS:
        blocks[:, 2:66] = permuted(256, n * 64).reshape(n, 64)
    elif t == T.IQ2_S:
        index = permuted(1024, n * 32).reshape(n, 8, 4)
        blocks[:, 2:34] = (index & 255).reshape(n, 32)
        blocks[:, 66:74] = (index >> 8 << np.array([0, 2, 4, 6])).sum(axis=2)
    elif t == T.IQ3_S:
        index = permuted(512, n * 64).reshape(n, 8, 8)
        blocks[:, 2:66] = (index & 255).reshape(n, 64)
        blocks[:, 66:74] = (index >> 8 << np.arange(8)).sum(axis=2)
    elif t == T.IQ1_S:
        index = permuted(2048, n * 32).reshape(n, 8, 4)
        blocks[:, 2:34] = (index & 255).reshape(n, 32)
        aux = (index >> 8 << np.array([0, 3, 6, 9])).sum(axis=2) | rng.integers(0, 16, (n, 8)) << 12
        blocks[:, 34:50] = aux.astype("<u2").view(np.uint8)


def random_blocks(rng, t, n):
    blocks = rng.integers(0, 256, (n, GGML_QUANT_SIZES[t][1]), dtype=np.uint8)
    for at in F16_AT[t]:
        put_u16(blocks, at, scales(rng, n))
    if t == T.IQ1_M:
        d = scales(rng, n)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (d >> 4 * i & 15) << 4
    elif t == T.MXFP4:
        blocks[:, 0] = np.concatenate([[0, 1, 2, 250], rng.integers(90, 140, n - 4)])
    sweep_indices(rng, blocks, t)
    return blocks


def random_floats(rng, t, n):
    if t == T.F32:
        bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
        return bits[np.isfinite(bits.view(np.float32))].view(np.uint8).reshape(-1, 4)
    bits = np.arange(1 << 16, dtype=np.uint16)  # all there are, but NaN
    is_nan = (bits & 0x7fff) > (0x7c00 if t == T.F16 else 0x7f80)
    return rng.permutation(bits[~is_nan])[:n].view(np.uint8).reshape(-1, 2)


def fnv1a(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def write_vectors(folder):
    for t in list(FLOATS) + list(F16_AT):
        rng = np.random.default_rng(1000 + int(t))
        if t in FLOATS:
            blocks, n_full = random_floats(rng, t, 2048), 256
        else:
            blocks, n_full = random_blocks(rng, t, 64 if t in (T.IQ1_S, T.IQ1_M) else 32), 2
        if t == T.BF16:
            floats = quants.dequantize(blocks.reshape(1, -1), t).reshape(-1)
        else:
            floats = np.concatenate([quants.dequantize(b.reshape(1, -1), t).reshape(-1) for b in blocks])
        floats = floats.astype("<f4")
        full = floats[:n_full * GGML_QUANT_SIZES[t][0]]
        with open(os.path.join(folder, f"{t.name}.bin"), "wb") as f:
            f.write(struct.pack("<II", len(blocks), n_full) + blocks.tobytes() + full.tobytes())
            f.write(struct.pack("<Q", fnv1a(floats.tobytes())))

    rng = np.random.default_rng(1)
    x = (rng.normal(size=(24, 32)) * 10.0 ** rng.integers(-4, 5, (24, 1))).astype("<f4")
    x[3] = 0
    with open(os.path.join(folder, "quantize-q8_0.bin"), "wb") as f:
        f.write(struct.pack("<I", len(x)) + x.tobytes() + quants.quantize(x, T.Q8_0).tobytes())


if __name__ == "__main__":
    if sys.argv[1:] == ["tables"]:
        write_tables()
    elif sys.argv[1:] == ["vectors"]:
        write_vectors(os.path.dirname(os.path.abspath(__file__)))
    else:
        sys.exit(__doc__)
