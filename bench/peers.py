"""What compare.py and batch.py share: prompts; and the peers, llama.cpp (llama-cpp-python) and
ik_llama.cpp (ik-llama-cpp-python), through their C interfaces, in a process for each measurement.
"""

import importlib.util
import os
import re
import statistics
import subprocess
import sys

SENTENCE = "Once upon a time there was a poor miller who had three sons. "


def prompt_text(n_word):
    words = (SENTENCE * (n_word // 13 + 1)).split()
    return " ".join(words[:n_word])


def median_line(values):
    return f"{statistics.median(values):8.1f}  ({min(values):.1f} .. {max(values):.1f})"


# ------------------------------------------------------------------ processes


def peers_here(options):
    """(name, model file) of those that the running Python can import."""
    for name, model in (("llama_cpp", options.model), ("ik_llama_cpp", options.ik_model)):
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed, left out")
        elif model is None:
            print(f"{name}: left out, --ik-model names no file for it")
        else:
            yield name, model


def ask_peer(name, arguments, pattern):
    """Runs the script anew, with --peer; the numbers in the line of its output that matches."""
    command = [sys.executable, os.path.abspath(sys.argv[0]), "--peer", name, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace")
    found = re.search(pattern, done.stdout, re.MULTILINE)
    if done.returncode != 0 or not found:
        sys.exit(f"{name} failed: {done.stderr.strip()[-2000:]}")
    return [float(number) for number in found.groups()]


# ------------------------------------------------------------------ within one


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


def open_peer(api, path, n_thread, n_ctx, **more):
    """Model and context; more: members of the context's parameters."""
    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    # What ik_llama.cpp's authors recommend for MoE models on the CPU: latent attention prepared while
    # loading, tensors repacked.
    set_where_present(model_params, n_gpu_layers=0, mla=3, repack_tensors=True)
    model = api.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        sys.exit(f"{path}: the library cannot load it")
    params = api.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_threads = params.n_threads_batch = n_thread
    set_where_present(params, flash_attn=True, mla_attn=3, fused_moe_up_gate=True, **more)
    context = api.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"{path}: the library makes no context")
    return model, context


def peer_tokens(api, name, model, text):
    """The prompt's ids, with BOS."""
    handle = api.llama_model_get_vocab(model) if name == "llama_cpp" else model
    text = text.encode()
    ids = (api.llama_token * (len(text) + 8))()
    n = api.llama_tokenize(handle, text, len(text), ids, len(ids), True, False)
    return list(ids[:n])
