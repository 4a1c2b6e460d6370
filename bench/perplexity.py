#!/usr/bin/env python3
"""Does numoe say of a text what llama.cpp says, file by file and format by format?

For each GGUF file and each format asked for, llama.cpp's quantizer writes a file into a scratch folder,
both engines compute the perplexity of the same text as numoe eval --perplexity defines it (windows of
N tokens, BOS first where the vocabulary has one, the second half scored), and a line says both and the
difference. Needs llama-cpp-python and numpy.

    bench/perplexity.py --numoe build/numoe --text FILE [--window 512] [--formats Q8_0,Q4_0] FILE.gguf...
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

# llama.cpp's numbers of whole-file types.
FORMATS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
           "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ3_S": 26,
           "IQ4_XS": 30, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38}


def quantize(path, name, folder):
    out = os.path.join(folder, f"{os.path.basename(path)[:-5]}-{name}.gguf")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMATS[name]
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(params)) != 0:
        return None
    return out


def numoe_perplexity(program, path, text, window):
    done = subprocess.run([program, "eval", "-q", "-m", path, "--perplexity", text, "--window",
                           str(window)], capture_output=True, text=True, errors="replace")
    found = re.search(r"perplexity ([0-9.]+)", done.stdout + done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"numoe: {done.stderr.strip()}")
    return float(found.group(1))


def window_loss(context, batch, ids, n_vocab):
    """Negative log-likelihood of the second half of a window, and how many tokens that is."""
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
        batch.logits[i] = 1
    batch.n_tokens = len(ids)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    if llama_cpp.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp: decoding failed")
    loss = 0.0
    for i in range(len(ids) // 2, len(ids) - 1):
        row = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), shape=(n_vocab,))
        row = row.astype(numpy.float64)
        top = row.max()
        loss += top + numpy.log(numpy.exp(row - top).sum()) - row[ids[i + 1]]
    return loss, len(ids) - 1 - len(ids) // 2


def peer_perplexity(path, text, window):
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        return None
    vocab = llama_cpp.llama_model_get_vocab(model)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = window
    context = llama_cpp.llama_init_from_model(model, params)
    ids = (llama_cpp.llama_token * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), True, False)
    batch = llama_cpp.llama_batch_init(window, 0, 1)
    bos = llama_cpp.llama_vocab_bos(vocab) if llama_cpp.llama_vocab_get_add_bos(vocab) else None
    loss = count = 0
    for first in range(0, n - window + 1, window):
        part = list(ids[first:first + window])
        if bos is not None:
            part[0] = bos
        more = window_loss(context, batch, part, llama_cpp.llama_vocab_n_tokens(vocab))
        loss, count = loss + more[0], count + more[1]
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return float(numpy.exp(loss / count))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numoe", default="./numoe", help="the program (default: ./numoe)")
    parser.add_argument("--text", required=True, help="text file")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--formats", default="Q8_0", help="separated by commas (default: Q8_0)")
    parser.add_argument("models", nargs="+", metavar="FILE.gguf")
    options = parser.parse_args()
    silent = llama_cpp.llama_log_callback(lambda *_: None)  # must live as long as it may be called
    llama_cpp.llama_log_set(silent, None)
    text = open(options.text, "rb").read()
    print(f"{'file':44} {'numoe':>10} {'llama.cpp':>10}  difference")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for name in options.formats.split(","):
                path = quantize(model, name, folder)
                title = f"{os.path.basename(model)} {name}"
                theirs = peer_perplexity(path, text, options.window) if path else None
                if theirs is None:
                    print(f"{title:44} llama.cpp cannot make or load it")
                    continue
                ours = numoe_perplexity(options.numoe, path, options.text, options.window)
                print(f"{title:44} {ours:10.4f} {theirs:10.4f}  {100 * (ours / theirs - 1):+.3f} %",
                      flush=True)
                os.unlink(path)


if __name__ == "__main__":
    main()
