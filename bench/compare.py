#!/usr/bin/env python3
"""How fast is numoe beside other engines on the same file?

Compares with whichever of llama.cpp (llama-cpp-python) and ik_llama.cpp (ik-llama-cpp-python) the
running Python can import. Every engine evaluates the same prompt (a window of its own), then decodes
greedily, one sequence, the end of turn ignored; loading is outside both windows. Engines and thread
counts take turns in each round, so that a machine that slows down slows all of them; medians are
printed, and numoe's as a ratio to each, with the share of the read bandwidth that numoe measured in
the same process. A process of its own for each measurement.

    bench/compare.py --numoe build/numoe --model FILE.gguf --threads 1,2 [--rounds 5] [--tokens 128]
                     [--prompt-words 300]

ik_llama.cpp reads DeepSeek files only in the older form with one attn_kv_b tensor: --ik-model names
such a file. --csv appends the single measurements to a file. kt-kernel has no whole models: bench/layer.py
compares a single layer with it.
"""

import argparse
import contextlib
import csv
import re
import statistics
import subprocess
import sys
import time

from peers import ask_peer, median_line, open_peer, peer_api, peer_tokens, peers_here, prompt_text

# ------------------------------------------------------------------ engines, each in its own process
# Each gives {"decode": tokens/s, "prompt": tokens/s} and numoe also {"share": percent}.


def run_numoe(program, model, n_thread, options):
    command = [program, "run", "-m", model, "-t", str(n_thread), "-n", str(options.tokens), "-p",
               prompt_text(options.prompt_words), "--temp", "0", "--repeat-penalty", "1",
               "--ignore-eog"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace")
    decode = re.search(r"^generated .* s, ([0-9.]+) tokens/s", done.stderr, re.MULTILINE)
    prompt = re.search(r"^prompt .* s, ([0-9.]+) tokens/s", done.stderr, re.MULTILINE)
    share = re.search(r"^memory .* ([0-9]+) % of the", done.stderr, re.MULTILINE)
    if done.returncode != 0 or not (decode and prompt and share):
        sys.exit(f"numoe failed: {done.stderr.strip()}")
    return {"decode": float(decode.group(1)), "prompt": float(prompt.group(1)),
            "share": float(share.group(1))}


def run_peer(name, model, n_thread, options):
    arguments = ["--model", model, "--threads", str(n_thread), "--tokens", str(options.tokens),
                 "--prompt-words", str(options.prompt_words)]
    decode_rate, prompt_rate = ask_peer(name, arguments, r"^tokens/s ([0-9.]+) ([0-9.]+)$")
    return {"decode": decode_rate, "prompt": prompt_rate}


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


def measure_peer(name, path, n_thread, options):
    api = peer_api(name)
    n_ctx = options.tokens + 8 * options.prompt_words + 256
    model, context = open_peer(api, path, n_thread, n_ctx)
    decode.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    ids = peer_tokens(api, name, model, prompt_text(options.prompt_words))
    batch = api.llama_batch_init(len(ids), 0, 1)
    start = time.monotonic()
    token = decode(api, context, batch, ids, 0)
    middle = time.monotonic()
    for i in range(options.tokens - 1):
        token = decode(api, context, batch, [token], len(ids) + i)
    end = time.monotonic()
    print(f"tokens/s {(options.tokens - 1) / (end - middle):.3f} {len(ids) / (middle - start):.3f}")


# ------------------------------------------------------------------ the comparison


def engines(options):
    """name -> function of threads, for what there is."""
    found = {"numoe": lambda t: run_numoe(options.numoe, options.model, t, options)}
    for name, model in peers_here(options):
        found[name] = lambda t, name=name, model=model: run_peer(name, model, t, options)
    return found


def measure(options, threads, found):
    """(engine, threads) -> results of each round."""
    results = {(name, t): [] for name in found for t in threads}
    with contextlib.ExitStack() as stack:
        rows = None
        if options.csv:
            rows = csv.writer(stack.enter_context(open(options.csv, "a", newline="")))
        for i in range(options.rounds + 1):
            for t in threads:
                for name, run in found.items():
                    value = run(t)
                    if i == 0:
                        continue  # the first round warms the page cache
                    results[name, t].append(value)
                    if rows:
                        rows.writerow([options.model, name, t, options.tokens, value["prompt"],
                                       value["decode"]])
    return results


def print_results(threads, found, results):
    for what in ("decode", "prompt"):
        for t in threads:
            print(f"{what}, {t} thread{'s' if t > 1 else ''}, tokens/s: median (least .. most)")
            numoe = statistics.median(r[what] for r in results["numoe", t])
            for name in found:
                values = [r[what] for r in results[name, t]]
                ratio = numoe / statistics.median(values)
                print(f"  {name:13}{median_line(values)}" +
                      ("" if name == "numoe" else f"   numoe is {ratio:.2f} times that"))
            if what == "decode":
                share = statistics.median(r["share"] for r in results["numoe", t])
                print(f"  numoe reads weights at {share:.0f} % of the bandwidth that it measures")


def compare(options):
    threads = [int(t) for t in options.threads.split(",")]
    found = engines(options)
    print_results(threads, found, measure(options, threads, found))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numoe", default="./numoe", help="the program (default: ./numoe)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--ik-model", help="GGUF file for ik_llama.cpp, if it is another one")
    parser.add_argument("--threads", default="1", help="counts, separated by commas")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to decode (default: 128)")
    parser.add_argument("--prompt-words", type=int, default=13,
                        help="length of the prompt in words (default: 13)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements each (default: 5)")
    parser.add_argument("--csv", help="append every measurement to this file")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        measure_peer(options.peer, options.model, int(options.threads), options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
