#!/usr/bin/env python3
"""How much faster are many requests together than one after the other, and than a peer's batching?

64 prompts of mixed length, none of which begins like another, with mixed numbers of tokens to
generate, greedy, the end of turn ignored: every engine generates as many. numoe answers them with
`numoe batch`, and with `numoe batch --max-seqs 1`; whichever of llama.cpp (llama-cpp-python) and
ik_llama.cpp (ik-llama-cpp-python) the running Python can import decodes them through its C
interface: up to 64 and up to 8 sequences in one batch, next tokens and new prompts together, a new
sequence as soon as one is done, and one after the other. Loading is outside. For the peers
it is the time in the library alone, so Python's own is not held against them. Engines take turns in
each round; medians are printed. A process for each measurement.

--cpu-time is for machines that others use too: one thread, and seconds of the processor instead of
those of the clock. numoe's then hold what loading took.

    bench/batch.py --numoe build/numoe --model FILE.gguf [--threads 2] [--rounds 5] [--prompts 64]
                   [--words 8-200] [--tokens 16-128] [--peer-sequences 64,8] [--cpu-time]

ik_llama.cpp reads DeepSeek files only in the older form with one attn_kv_b tensor: --ik-model names
such a file.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from peers import ask_peer, median_line, open_peer, peer_api, peer_tokens, peers_here, prompt_text

BATCH_TOKENS = 512  # in one call of a peer's decoder, as its programs do


def mixed(options):
    """[(prompt, tokens)]: the same in every process."""
    state = 1
    requests = []

    def draw(first, last):
        nonlocal state
        state = (state * 1103515245 + 12345) % 2**31
        return first + state // 65536 % (last - first + 1)

    words = [int(n) for n in options.words.split("-")]
    tokens = [int(n) for n in options.tokens.split("-")]
    for i in range(options.prompts):
        requests.append((f"Tale {i + 1}. {prompt_text(draw(*words))}", draw(*tokens)))
    return requests


# ---------------------------------------------------------------- engines, each in its own process
# Each gives the seconds from the first prompt to the last token.


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_numoe(options, together):
    requests = mixed(options)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests")
        with open(path, "w") as out:
            for i, (prompt, n) in enumerate(requests):
                body = {"prompt": prompt, "max_tokens": n, "temperature": 0,
                        "repetition_penalty": 1, "ignore_eos": True}
                out.write(json.dumps({"custom_id": str(i), "body": body}) + "\n")
        command = [options.numoe, "batch", "-m", options.model, "-t", str(options.threads), "-i",
                   path, "-o", os.path.join(folder, "results")]
        command += [] if together else ["--max-seqs", "1"]
        start = cpu_of_children()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace")
    found = re.search(r"^generated +(\d+) tokens in ([0-9.]+) s", done.stderr, re.MULTILINE)
    if done.returncode != 0 or not found or int(found.group(1)) != sum(n for _, n in requests):
        sys.exit(f"numoe failed: {done.stderr.strip()}")
    return cpu_of_children() - start if options.cpu_time else float(found.group(2))


def run_peer(name, model, options, n_seq):
    arguments = ["--model", model, "--threads", str(options.threads), "--prompts",
                 str(options.prompts), "--words", options.words, "--tokens", options.tokens,
                 "--peer-sequences", str(n_seq)]
    arguments += ["--cpu-time"] if options.cpu_time else []
    return ask_peer(name, arguments, r"^seconds ([0-9.]+)$")[0]


class Sequence:
    """A prompt and what follows it, in a peer's context."""

    def __init__(self, place, ids, n_token):
        self.place, self.pending, self.left = place, ids, n_token
        self.position = 0


class Peer:
    """A peer's context with room for n_seq sequences, and the time spent in it."""

    def __init__(self, name, path, options, n_seq, n_ctx):
        self.api = peer_api(name)
        self.seconds = 0.0
        self.clock = time.process_time if options.cpu_time else time.monotonic
        self.model, self.context = open_peer(self.api, path, options.threads, n_ctx * n_seq,
                                             n_seq_max=n_seq, n_batch=BATCH_TOKENS)
        vocab = self.api.llama_model_get_vocab(self.model)
        self.n_vocab = self.api.llama_vocab_n_tokens(vocab)
        self.batch = self.api.llama_batch_init(BATCH_TOKENS, 0, 1)

    def add(self, sequence):
        """As many pending tokens as the batch has room for; where the last one's logits are."""
        n = min(len(sequence.pending), BATCH_TOKENS - self.batch.n_tokens)
        for i in range(n):
            at = self.batch.n_tokens
            self.batch.token[at] = sequence.pending[i]
            self.batch.pos[at] = sequence.position + i
            self.batch.n_seq_id[at] = 1
            self.batch.seq_id[at][0] = sequence.place
            self.batch.logits[at] = i + 1 == len(sequence.pending)
            self.batch.n_tokens += 1
        sequence.pending = sequence.pending[n:]
        sequence.position += n
        return self.batch.n_tokens - 1 if n and not sequence.pending else None

    def step(self, sequences):
        """Next tokens first, prompts with what room is left."""
        import numpy
        self.batch.n_tokens = 0
        ends = [(s, self.add(s)) for s in sorted(sequences, key=lambda s: len(s.pending))]
        start = self.clock()
        if self.api.llama_decode(self.context, self.batch) != 0:
            sys.exit("decoding failed")
        self.api.llama_get_logits(self.context)  # waits for it
        self.seconds += self.clock() - start
        for sequence, at in ends:
            if at is not None:
                logits = self.api.llama_get_logits_ith(self.context, at)
                row = numpy.ctypeslib.as_array(logits, shape=(self.n_vocab,))
                sequence.pending = [int(numpy.argmax(row))]
                sequence.left -= 1

    def forget(self, place):
        if hasattr(self.api, "llama_get_memory"):
            self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), place, -1, -1)
        else:
            self.api.llama_kv_cache_seq_rm(self.context, place, -1, -1)


def measure_peer(name, options):
    requests = mixed(options)
    longest = max(len(prompt) + 16 + n for prompt, n in requests)  # no more tokens than bytes
    n_seq = min(int(options.peer_sequences), len(requests))
    peer = Peer(name, options.model, options, n_seq, longest)
    waiting = [(peer_tokens(peer.api, name, peer.model, prompt), n) for prompt, n in requests]
    active, free = [], list(range(n_seq))
    while waiting or active:
        while waiting and free:
            active.append(Sequence(free.pop(), *waiting.pop(0)))
        peer.step(active)
        for sequence in [s for s in active if s.left == 0]:
            peer.forget(sequence.place)
            free.append(sequence.place)
            active.remove(sequence)
    print(f"seconds {peer.seconds:.4f}")


# ------------------------------------------------------------------ the comparison


def engines(options):
    """name -> function without arguments, for what there is."""
    found = {"numoe, together": lambda: run_numoe(options, True),
             "numoe, one by one": lambda: run_numoe(options, False)}
    for name, model in peers_here(options):
        for n in [*options.peer_sequences.split(","), "1"]:
            how = "one by one" if n == "1" else f"{n} together"
            found[f"{name}, {how}"] = (lambda name=name, model=model, n=n:
                                       run_peer(name, model, options, n))
    return found


def compare(options):
    n_token = sum(n for _, n in mixed(options))
    found = engines(options)
    results = {name: [] for name in found}
    for i in range(options.rounds + 1):
        for name, run in found.items():
            value = n_token / run()
            if i > 0:  # the first round warms the page cache
                results[name].append(value)
    seconds = "s of processor time" if options.cpu_time else "s"
    print(f"{options.prompts} prompts, {n_token} tokens generated, {options.threads} threads: "
          f"tokens/{seconds}, prompts counted in the time: median (least .. most)")
    numoe = statistics.median(results["numoe, together"])
    for name, values in results.items():
        ratio = numoe / statistics.median(values)
        print(f"  {name:26}{median_line(values)}" +
              ("" if ratio == 1 else f"   numoe together is {ratio:.2f} times that"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numoe", default="./numoe", help="the program (default: ./numoe)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--ik-model", help="GGUF file for ik_llama.cpp, if it is another one")
    parser.add_argument("--threads", type=int, default=2, help="default: 2")
    parser.add_argument("--prompts", type=int, default=64, help="default: 64")
    parser.add_argument("--words", default="8-200", help="of a prompt (default: 8-200)")
    parser.add_argument("--tokens", default="16-128", help="to generate (default: 16-128)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements each (default: 5)")
    parser.add_argument("--cpu-time", action="store_true",
                        help="one thread, seconds of the processor")
    parser.add_argument("--peer-sequences", default="64,8",
                        help="that a peer decodes together, one or more choices (default: 64,8)")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cpu_time:
        options.threads = 1
    if options.peer:
        measure_peer(options.peer, options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
