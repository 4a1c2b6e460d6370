#!/usr/bin/env python3
"""Importance matrices of a made-up model with 3 layers (the first dense) and 4 experts, 2 for a token,
as llama.cpp writes them: counts.gguf with the gguf package, the older form by its description. Columns
of the router's input: 8.

    make.py FOLDER
"""
import struct
import sys

import gguf
import numpy

COUNTS = {1: [10, 20, 30, 40], 2: [0, 64, 4, 32]}  # 50 tokens in each layer
N_COL, N_TOKEN = 8, 50


def write_gguf(path):
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    writer.add_tensor("blk.0.ffn_down.weight.in_sum2", numpy.ones((1, N_COL), numpy.float32))
    writer.add_tensor("blk.0.ffn_down.weight.counts", numpy.full((1, 1), 50, numpy.float32))
    for il, counts in COUNTS.items():
        for name in "gate", "down":
            tensor = f"blk.{il}.ffn_{name}_exps.weight"
            writer.add_tensor(tensor + ".in_sum2", numpy.ones((4, N_COL), numpy.float32))
            writer.add_tensor(tensor + ".counts", numpy.array(counts, numpy.float32).reshape(4, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def entry(name, n_call, values):
    return (struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", n_call, len(values)) +
            struct.pack(f"<{len(values)}f", *values))


def write_dat(path, means):
    """A token's squares are 1 in every column. Sums grow with the count; means are times the calls,
    and 1 stands for experts without a token."""
    entries = []
    for il, counts in COUNTS.items():
        router = [1.0 if means else float(N_TOKEN)] * N_COL
        experts = []
        for count in counts:
            experts += [1.0 if means else float(count)] * N_COL
        entries.append(entry(f"blk.{il}.ffn_gate_inp.weight", 1, router))
        for name in "gate", "up":
            entries.append(entry(f"blk.{il}.ffn_{name}_exps.weight", 1, experts))
        entries.append(entry(f"blk.{il}.attn_q.weight", 1, router))
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(entries)) + b"".join(entries))
        f.write(struct.pack("<ii", 1, 8) + b"text.txt")


def write_old(path):
    """As of before April 2024: sums, and an entry for each expert."""
    entries = []
    for il, counts in COUNTS.items():
        entries.append(entry(f"blk.{il}.ffn_gate_inp.weight", 1, [float(N_TOKEN)] * N_COL))
        for name in "up", "gate":
            for ie, count in enumerate(counts):
                entries.append(entry(f"blk.{il}.ffn_{name}.{ie}.weight", 1, [float(count)] * N_COL))
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(entries)) + b"".join(entries))


def write_few(path):
    """Means, where half of the experts were never chosen: their ratio to the router is that of sums."""
    entries = []
    for il in COUNTS:
        entries.append(entry(f"blk.{il}.ffn_gate_inp.weight", 1, [1.0] * N_COL))
        entries.append(entry(f"blk.{il}.ffn_gate_exps.weight", 1,
                             [0.4] * N_COL + [1.6] * N_COL + [0.0] * 2 * N_COL))
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(entries)) + b"".join(entries))


folder = sys.argv[1]
write_gguf(folder + "/counts.gguf")
write_dat(folder + "/sums.dat", False)
write_dat(folder + "/means.dat", True)
write_old(folder + "/old.dat")
write_few(folder + "/few.dat")
