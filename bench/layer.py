#!/usr/bin/env python3
"""How fast is one layer's routed experts beside kt-kernel's?

kt-kernel (KTransformers) has no whole model to run, so one layer of a GGUF file is compared: its routed
experts, one token at a time. numoe decodes with --profile and says what the layer's experts took,
and its meetings, which belong to attention and router as well. kt-kernel gets the same tensors, and
for each token other experts drawn at random; its routing is not in its time. Its C++ extension is used
without the Python half, so PyTorch is not needed; numpy and gguf are. Both take turns; medians.

    bench/layer.py --numoe build/numoe --model FILE.gguf --layer 1 --threads 1,2 [--rounds 5] [--tokens 64]
"""

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time

from peers import SENTENCE, ask_peer

# ------------------------------------------------------------------ numoe


def run_numoe(options, n_thread):
    """Microseconds a token in the layer: experts, meetings."""
    command = [options.numoe, "run", "-m", options.model, "-t", str(n_thread), "-n",
               str(options.tokens), "-p", SENTENCE, "--temp", "0", "--ignore-eog", "--chunk", "1",
               "--profile"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace")
    title = re.search(r"^layer, us a token  (.*)$", done.stderr, re.MULTILINE)
    row = re.search(rf"^ *{options.layer}((?:  +[0-9.]+)+)$", title and done.stderr[title.end():] or "",
                    re.MULTILINE)
    if done.returncode != 0 or not title:
        sys.exit(f"numoe failed: {done.stderr.strip()[-2000:]}")
    if not row:
        sys.exit(f"{options.model} has no layer {options.layer}")
    us = dict(zip(re.split("  +", title.group(1).strip()), map(float, row.group(1).split())))
    if us["experts"] == 0:
        sys.exit(f"layer {options.layer} has no routed experts")
    return us["experts"], us["meetings"]


# ------------------------------------------------------------------ kt-kernel, in a process of its own


def kt_extension():
    """The fastest variant that this processor can run, and its name."""
    package = importlib.util.find_spec("kt_kernel")
    path = os.path.join(package.submodule_search_locations[0], "_cpu_detect.py")
    spec = importlib.util.spec_from_file_location("kt_cpu_detect", path)
    detect = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(detect)
    return detect.initialize()


def open_layer(kt, options, n_thread):
    """kt-kernel's layer, what keeps its memory alive, and (hidden, experts, experts used)."""
    import gguf
    import numpy
    reader = gguf.GGUFReader(options.model)
    tensors = {t.name: t for t in reader.tensors}
    names = [f"blk.{options.layer}.ffn_{what}_exps.weight" for what in ("gate", "up", "down")]
    if any(name not in tensors for name in names):
        sys.exit(f"{options.model} has no tensor {names[0]}")
    gate, up, down = (tensors[name] for name in names)
    n_embd, n_ff, n_expert = (int(n) for n in gate.shape)
    architecture = reader.fields["general.architecture"].contents()
    n_used = reader.fields[f"{architecture}.expert_used_count"].contents()
    pool = kt.CPUInfer(n_thread)
    on_gpu = numpy.zeros(n_expert, dtype=numpy.uint8)
    config = kt.moe.MOEConfig(n_expert, n_used, n_embd, n_ff, on_gpu.ctypes.data)
    config.layer_idx = options.layer
    config.pool = pool.backend_
    config.m_block, config.group_min_len, config.max_len, config.group_max_len = 32, 10, 512, 512
    config.gate_proj, config.up_proj, config.down_proj = (t.data.ctypes.data for t in (gate, up, down))
    config.gate_type, config.up_type, config.down_type = (int(t.tensor_type) for t in (gate, up, down))
    config.hidden_type = int(gguf.GGMLQuantizationType.BF16)
    layer = kt.moe.MOE(config)
    same = numpy.arange(n_expert, dtype=numpy.uint64)
    pool.submit(layer.load_weights_task(same.ctypes.data))
    pool.sync()
    return layer, (pool, reader, on_gpu, same), (n_embd, n_expert, n_used)


def measure_kt(options, n_thread):
    import numpy
    kt, variant = kt_extension()
    layer, memory, (n_embd, n_expert, n_used) = open_layer(kt, options, n_thread)
    pool = memory[0]
    random = numpy.random.default_rng(1)
    n_token = numpy.array([1], dtype=numpy.int32)
    weights = numpy.full(n_used, 1 / n_used, dtype=numpy.float32)
    floats = random.standard_normal(n_embd).astype(numpy.float32)
    x = (floats.view(numpy.uint32) >> 16).astype(numpy.uint16)  # BF16, cut
    y = numpy.zeros(n_embd, dtype=numpy.uint16)
    us = []
    for _ in range(options.tokens):
        ids = random.permutation(n_expert)[:n_used].astype(numpy.int64)
        begin = time.monotonic()
        pool.submit(layer.forward_task(n_token.ctypes.data, n_used, ids.ctypes.data,
                                       weights.ctypes.data, x.ctypes.data, y.ctypes.data, False))
        pool.sync()
        us.append((time.monotonic() - begin) * 1e6)
    if not y.any():
        sys.exit("kt-kernel computed nothing")
    print(f"us a token {statistics.mean(us[options.tokens // 4:]):.2f}, variant {variant}")


def run_kt(options, n_thread):
    arguments = ["--model", options.model, "--layer", str(options.layer), "--threads", str(n_thread),
                 "--tokens", str(options.tokens)]
    return ask_peer("kt_kernel", arguments, r"^us a token ([0-9.]+), variant")[0]


def why_not_kt():
    """None where kt-kernel can run here."""
    missing = [name for name in ("kt_kernel", "numpy", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed ({', '.join(missing)})"
    try:
        kt_extension()
    except (ImportError, OSError, RuntimeError) as error:
        return f"cannot run on this machine: {str(error).splitlines()[0]}"
    return None


# ------------------------------------------------------------------ the comparison


def compare(options):
    threads = [int(t) for t in options.threads.split(",")]
    why = why_not_kt()
    if why:
        print(f"kt_kernel: {why}, left out")
    ours, theirs = {t: [] for t in threads}, {t: [] for t in threads}
    for _ in range(options.rounds):
        for t in threads:
            ours[t].append(run_numoe(options, t))
            if not why:
                theirs[t].append(run_kt(options, t))
    for t in threads:
        experts, meetings = (statistics.median(column) for column in zip(*ours[t]))
        print(f"layer {options.layer}, {t} thread{'s' if t > 1 else ''}, us a token (medians)")
        print(f"  numoe      {experts:9.1f}  and {meetings:.1f} in all meetings of the layer")
        if theirs[t]:
            us = statistics.median(theirs[t])
            print(f"  kt_kernel  {us:9.1f}  numoe is {us / experts:.2f} times as fast, "
                  f"{us / (experts + meetings):.2f} with all meetings")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numoe", default="./numoe", help="the program (default: ./numoe)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--layer", type=int, required=True, help="number of a layer with experts")
    parser.add_argument("--threads", default="1", help="counts, separated by commas")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a measurement (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements each (default: 5)")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        measure_kt(options, int(options.threads))
    else:
        compare(options)


if __name__ == "__main__":
    main()
