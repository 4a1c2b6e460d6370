#!/usr/bin/env python3
"""How fast does numoe decode beside other engines on the same file?

Compares with whichever of llama.cpp (llama-cpp-python) and ik_llama.cpp (ik-llama-cpp-python) the
running Python can import. Every engine evaluates the same prompt, then decodes greedily, one sequence,
the end of turn ignored; loading and the prompt are outside the window. Engines and thread counts take
turns in each round, so that a machine that slows down slows all of them; medians are printed, and
numoe's as a ratio to each. A process of its own for each measurement.

    bench/compare.py --numoe build/numoe --model FILE.gguf --threads 1,2 [--rounds 5] [--tokens 128]

ik_llama.cpp reads DeepSeek files only in the older form with one attn_kv_b tensor: --ik-model names
such a file. --csv appends the single measurements to a file.
"""

import argparse
import contextlib
import csv
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time

PROMPT = "Once upon a time there was a poor miller who had three sons."


def median_line(values):
    return f"{statistics.median(values):8.1f}  ({min(values):.1f} .. {max(values):.1f})"


# ------------------------------------------------------------------ engines, each in its own process


def run_numoe(program, model, n_thread, n_token):
    """tokens/s as the program reports it."""
    command = [program, "run", "-m", model, "-t", str(n_thread), "-n", str(n_token), "-p", PROMPT,
               "--temp", "0", "--repeat-penalty", "1", "--ignore-eog"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace")
    found = re.search(r"^generated .* s, ([0-9.]+) tokens/s", done.stderr, re.MULTILINE)
    if done.returncode != 0 or not found:
        sys.exit(f"numoe failed: {done.stderr.strip()}")
    return float(found.group(1))


def run_peer(name, model, n_thread, n_token):
    command = [sys.executable, os.path.abspath(__file__), "--peer", name, "--model", model,
               "--threads", str(n_thread), "--tokens", str(n_token)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace")
    found = re.search(r"^tokens/s ([0-9.]+)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not found:
        sys.exit(f"{name} failed: {done.stderr.strip()[-2000:]}")
    return float(found.group(1))


def peer_api(name):
    """The C interface; both libraries have the functions that are used here."""
    if name == "llama_cpp":
        import llama_cpp
        return llama_cpp
    from ik_llama_cpp import _ctypes_api
    return _ctypes_api


def set_where_present(struct, **values):
    names = {field[0] for field in struct._fields_}
    for name, value in values.items():
        if name in names:
            setattr(struct, name, value)


def open_peer(api, path, n_thread, n_ctx):
    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    # What its authors recommend for MoE models with latent attention; loading prepares for it.
    set_where_present(model_params, n_gpu_layers=0, mla=3)
    model = api.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        sys.exit(f"{path}: the library cannot load it")
    params = api.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_threads = params.n_threads_batch = n_thread
    set_where_present(params, flash_attn=True, mla_attn=3, fused_moe_up_gate=True)
    context = api.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"{path}: the library makes no context")
    return model, context


def peer_tokens(api, name, model):
    """The prompt's ids, with BOS."""
    handle = api.llama_model_get_vocab(model) if name == "llama_cpp" else model
    text = PROMPT.encode()
    ids = (api.llama_token * (len(text) + 8))()
    n = api.llama_tokenize(handle, text, len(text), ids, len(ids), True, False)
    return list(ids[:n])


def decode(api, context, batch, ids, position):
    """Evaluates ids; the greedy choice after the last."""
    import numpy
    for i, token in enumerate(ids):
        batch.token[i] = token
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i + 1 == len(ids)
    batch.n_tokens = len(ids)
    if api.llama_decode(context, batch) != 0:
        sys.exit("decoding failed")
    logits = api.llama_get_logits_ith(context, len(ids) - 1)
    return int(numpy.argmax(numpy.ctypeslib.as_array(logits, shape=(decode.n_vocab,))))


def measure_peer(name, path, n_thread, n_token):
    api = peer_api(name)
    model, context = open_peer(api, path, n_thread, n_token + 256)
    decode.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    ids = peer_tokens(api, name, model)
    batch = api.llama_batch_init(len(ids), 0, 1)
    token = decode(api, context, batch, ids, 0)
    start = time.monotonic()
    for i in range(n_token - 1):
        token = decode(api, context, batch, [token], len(ids) + i)
    print(f"tokens/s {(n_token - 1) / (time.monotonic() - start):.3f}")


# ------------------------------------------------------------------ the comparison


def engines(options):
    """name -> function of (threads, tokens), for what there is."""
    found = {"numoe": lambda t, n: run_numoe(options.numoe, options.model, t, n)}
    for name, model in (("llama_cpp", options.model), ("ik_llama_cpp", options.ik_model)):
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed, left out")
        elif model is None:
            print(f"{name}: left out, --ik-model names no file for it")
        else:
            found[name] = lambda t, n, name=name, model=model: run_peer(name, model, t, n)
    return found


def compare(options):
    threads = [int(t) for t in options.threads.split(",")]
    found = engines(options)
    speed = {(name, t): [] for name in found for t in threads}
    with contextlib.ExitStack() as stack:
        rows = None
        if options.csv:
            rows = csv.writer(stack.enter_context(open(options.csv, "a", newline="")))
        for i in range(options.rounds + 1):
            for t in threads:
                for name, run in found.items():
                    value = run(t, options.tokens)
                    if i == 0:
                        continue  # the first round warms the page cache
                    speed[name, t].append(value)
                    if rows:
                        rows.writerow([options.model, name, t, options.tokens, f"{value:.2f}"])
    for t in threads:
        print(f"{t} thread{'s' if t > 1 else ''}, tokens/s: median (least .. most)")
        numoe = statistics.median(speed["numoe", t])
        for name in found:
            values = speed[name, t]
            ratio = numoe / statistics.median(values)
            print(f"  {name:13}{median_line(values)}" +
                  ("" if name == "numoe" else f"   numoe is {ratio:.2f} times that"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numoe", default="./numoe", help="the program (default: ./numoe)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--ik-model", help="GGUF file for ik_llama.cpp, if it is another one")
    parser.add_argument("--threads", default="1", help="counts, separated by commas")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to decode (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements each (default: 5)")
    parser.add_argument("--csv", help="append every measurement to this file")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        measure_peer(options.peer, options.model, int(options.threads), options.tokens)
    else:
        compare(options)


if __name__ == "__main__":
    main()
