#!/usr/bin/env python3
"""Makes expected.json, the expected values of tests/unit/test-chat.c, with Python's jinja2.

    make.py [DATA]     DATA: the folder of public data that tests know as $NUMOE_TEST_DATA

expected.json  conversations; for each template, what each of them becomes without and with the
               beginning of an answer. Templates are those next to this script, the bundled model's
               ("model"), and public ones, of which only the results are stored.

Needs the Python packages jinja2 and gguf. Blocks are trimmed as transformers does it.
"""
import glob
import json
import os
import sys

import gguf
import jinja2

HERE = os.path.dirname(os.path.abspath(__file__))
SRC = os.path.join(HERE, '..', '..', '..')
PUBLIC = ['templates/llama-cpp-deepseek-r1.jinja', 'templates/deepseek-ai-DeepSeek-V3.1.jinja',
          'templates/Qwen-Qwen3-0.6B.jinja', 'tokenizers/deepseek_v3/tokenizer_config.json']


def chat(*turns):
    return [dict(zip(('role', 'content'), t)) for t in turns]


S, U, A = 'system', 'user', 'assistant'
CHATS = [
    chat((U, 'Tell me a story.')),
    chat((S, 'Be brief.'), (U, 'Hi')),
    chat((S, ' Two\n'), (S, 'systems '), (U, 'Hi\n')),
    chat((U, 'Hi'), (A, 'Hello!\n'), (U, ' How are you? <｜User｜>')),
    chat((S, 'Think.'), (U, '1+1'), (A, '<think>\n\nEasy.\n</think>\n\n2'), (U, '2+2'),
         (A, '<think>\nA </think> B</think>\n\n4\n')),
    chat((U, 'a'), (A, 'b</think>c'), (A, 'd'), (U, 'e'), (A, '<think>f<think>\ng\n\n</think>h'), (A, 'i')),
    chat((A, 'I begin.'), (U, 'Go on, 日本語 é 😀'), (A, 'x')),
    chat((U, 'a'), (A, '<think>x</think>y'), (U, '<tool_response>\nb\n</tool_response>'),
         (A, '<think>z</think>\nw'), (A, '')),
]


def render(template, gen, messages):
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return env.from_string(template).render(
        messages=messages, add_generation_prompt=gen,
        bos_token='<｜begin▁of▁sentence｜>', eos_token='<｜end▁of▁sentence｜>')


def load(path):
    with open(path, encoding='utf-8') as f:
        return json.load(f)['chat_template'] if path.endswith('.json') else f.read()


def main(data):
    model = gguf.GGUFReader(os.path.join(SRC, 'model/fable/fable-moe-Q4_K_M.gguf'))
    templates = {'model': model.fields['tokenizer.chat_template'].contents()}
    for path in sorted(glob.glob(os.path.join(HERE, '*.jinja'))):
        templates[os.path.basename(path)] = load(path)
    for name in PUBLIC:
        templates[name] = load(os.path.join(data, name))
    # An answer without text is a call of a tool in some templates.
    expected = {name: [[render(t, gen, c) for gen in (False, True)] for c in
                       (CHATS[:-1] if '-r1' in name else CHATS)] for name, t in templates.items()}
    with open(os.path.join(HERE, 'expected.json'), 'w', encoding='utf-8') as f:
        json.dump({'chats': CHATS, 'templates': expected}, f, indent=1)
        f.write('\n')


if __name__ == '__main__':
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(SRC, '..', 'shared'))
