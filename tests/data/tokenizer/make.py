#!/usr/bin/env python3
"""Makes the expected values of tests/unit/test-tokenizer.c with Hugging Face tokenizers.

    make.py                     writes splits.json and ids.json next to this script
    make.py --vocab DIR...      DIR holds NAME/tokenizer.json.xz; writes NAME.json next to this script and
                                NAME.gguf, a vocabulary of many megabytes, into the test cache
                                ($NUMOE_TEST_CACHE, else ~/.cache/numoe-tests)

Needs the Python packages tokenizers and gguf.

splits.json  for each pre-tokenizer and each text, where its pieces end (bytes)
ids.json     for some pre-tokenizers and each text, the ids with the bundled model's vocabulary
NAME.json    for each text, the ids with that vocabulary, and those of broken UTF-8

Texts are texts.json, written by hand, and random ones from a fixed seed. The patterns are written as in
the models' own tokenizer.json, not as numoe writes them.
"""
import json
import lzma
import os
import random
import sys

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
SRC = os.path.join(HERE, '..', '..', '..')

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = CL100K.replace('{1,3}', '')
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?%s*%s+%s|[^\r\n\p{L}\p{N}]?%s+%s*%s"
HAN_UPPER, HAN_LOWER = (x[:-1] + r"&&[^\p{Han}]]" for x in (UPPER, LOWER))
CJK = "[一-龥ࠀ-一가-퟿]+"
LETTERS = "[%s]+" % ''.join(chr(int(a, 16)) + ('-' + chr(int(b, 16)) if b else '') for a, _, b in (
    x.partition('-') for x in """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376
    377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5
    13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45
    1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc
    1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126
    2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee
    2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17
    ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
    1e900-1e943""".split()))

Digits = pre_tokenizers.Digits
# name: (normalises to NFC, ignore_merges, steps)
PRE = {
    'default': (False, False, [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    'gpt-2': (False, False, [GPT2]),
    'olmo': (True, False, [GPT2]),
    'llama-bpe': (False, True, [CL100K]),
    'glm4': (False, False, [CL100K]),
    'qwen2': (True, False, [QWEN2]),
    'qwen35': (True, False, [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL]),
    'deepseek-llm': (False, False, [
        "[\r\n]", r"\s?" + LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, Digits(True)]),
    'deepseek-coder': (False, False, ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, Digits(True)]),
    'deepseek-v3': (False, False, [
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
        " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]),
    'gpt-4o': (False, True, [
        CASED % (UPPER, LOWER, CONTRACTION + '?', UPPER, LOWER, CONTRACTION + '?') +
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL]),
    'tekken': (False, True, [
        CASED % (UPPER, LOWER, '', UPPER, LOWER, '') + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL]),
    'kimi-k2': (False, True, [
        r"[\p{Han}]+|" +
        CASED % (HAN_UPPER, HAN_LOWER, CONTRACTION + '?', HAN_UPPER, HAN_LOWER, CONTRACTION + '?') +
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL]),
    'refact': (False, False, [Digits(True), GPT2]),
    'command-r': (True, False, [Digits(True), GPT2]),
    'falcon': (False, False, [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    'bailingmoe': (False, False, [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+"]),
    'seed-coder': (False, False, [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL]),
}

# What random texts are made of: a few characters of every kind that some pattern tells apart.
KINDS = [
    ' ', ' ', ' ', '  ', '\n', '\r', '\t', '\r\n', '\v', '\f', '\x00', '\x1c', '\x7f', '\x85', '\xa0',
    '\u1680', '\u180e', '\u2003', '\u200b', '\u2028', '\u2029', '\u202f', '\u3000', '\ufeff',
    'a', 'b', 'the', 'The', 'S', 'T', 'LL', "'", "'s", "'S", "'ll", "'VE", "'\u017f", '\u2019s',
    '0', '1', '23', '456', '\u0661', '\u2167', '\xb2', '\xbd', '\u3007', '\U0001d7d8',
    '!', '.', ',', '-', '/', '\\', '_', '(', ']', '"', '$', '+', '<', '^', '`', '|', '~', '=', '...',
    '\xab', '\u2014', '\u3001', '\uff01', '\u20ac', '\u2200', '\U0001f600', '\U0001f468\u200d\U0001f469',
    '\xe9', 'e\u0301', '\u01c5', '\u0130', '\xdf', '\xaa', '\u02b0', '\u0416', '\u0434', '\u05d0',
    '\u0627', '\u0915', '\u093f', '\u094d', '\u0e01', '\u0e33', '\u1100', '\u1161', '\u11a8', '\uac00',
    '\u4e00', '\u6c49', '\u3005', '\u2e80', '\u3042', '\u30ab', '\U00020000', '\u212a', '\u2126',
    '\u0300', '\u0323', '\u20dd', '\ufe0f', '\ue000', '\ufdd0', '\U0010ffff',
]
# Those whose ids are stored too: one of each way to go on after splitting.
WITH_IDS = ['deepseek-v3', 'llama-bpe', 'qwen2', 'gpt-4o', 'refact']
BROKEN = [b'\xff', b'a\x80b', b'\xc3', b'\xe4\xb8', b'x\xf0\x9f\x98', b'\xed\xa0\x80', b'\xc0\xaf',
          b'caf\xe9 au lait', b'\xf5 \xfe\xff', b'ok \xe2\x82\xac \xe2\x82 no', b'\x80\x80 1234']


def load_texts():
    with open(os.path.join(HERE, 'texts.json'), encoding='utf-8') as f:
        texts = json.load(f)
    rng = random.Random(20250101)
    return texts + [''.join(rng.choice(KINDS) for _ in range(rng.randint(1, 14))) for _ in range(120)]


def pre_tokenizer(steps):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(s), 'isolated') if isinstance(s, str) else s for s in steps])


def cuts(pre, text):
    ends = [len(text[:end].encode()) for _, (_, end) in pre.pre_tokenize_str(text)]
    assert not text or ends[-1] == len(text.encode())
    return ends


def byte_chars():
    """The characters that stand for bytes in byte-level vocabularies."""
    own = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    chars = {b: chr(b) for b in own}
    chars.update({b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in chars)})
    return chars


def broken_ids(tokenizer, data):
    """Valid stretches as texts of their own, every other byte as its own token."""
    chars, ids, valid = byte_chars(), [], b''
    i = 0
    while i < len(data):
        for n in range(1, 5):
            try:
                data[i:i + n].decode()
            except UnicodeDecodeError:
                continue
            valid += data[i:i + n]
            i += n
            break
        else:
            ids += tokenizer.encode(valid.decode(), add_special_tokens=False).ids
            ids.append(tokenizer.token_to_id(chars[data[i]]))
            valid = b''
            i += 1
    return ids + tokenizer.encode(valid.decode(), add_special_tokens=False).ids


def dump(name, value):
    with open(os.path.join(HERE, name), 'w', encoding='utf-8') as f:
        f.write('{\n' + ',\n'.join(
            json.dumps(k) + ': ' + ('[\n' + ',\n'.join(json.dumps(x) for x in v) + '\n]'
                                    if isinstance(v, list) else json.dumps(v))
            for k, v in value.items()) + '\n}\n')


def make_small():
    texts = load_texts()
    reader = gguf.GGUFReader(os.path.join(SRC, 'model/fable/fable-moe-Q4_K_M.gguf'))
    field = lambda key: reader.fields['tokenizer.ggml.' + key].contents()
    vocab = {t: i for i, t in enumerate(field('tokens'))}
    merges = [tuple(m.split(' ')) for m in field('merges')]
    splits, ids = {'texts': texts}, {'texts': texts}
    for name, (nfc, whole, steps) in PRE.items():
        pre = pre_tokenizer(steps)
        splits[name] = [cuts(pre, t) for t in texts]
        if name not in WITH_IDS:
            continue
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        ids[name] = [tokenizer.encode(t).ids for t in texts]
        ids['broken ' + name] = [[b.hex(), broken_ids(tokenizer, b)] for b in BROKEN]
    dump('splits.json', splits)
    dump('ids.json', ids)


def write_vocab(path, pre, config):
    vocab = dict(config['model']['vocab'])
    kinds = {}
    for added in config['added_tokens']:
        vocab[added['content']] = added['id']
        kinds[added['id']] = (gguf.TokenType.CONTROL if added['special']
                              else gguf.TokenType.USER_DEFINED)
    by_id = {i: t for t, i in vocab.items()}
    size = max(by_id) + 1
    merges = config['model']['merges']
    w = gguf.GGUFWriter(path, 'deepseek2')
    w.add_tokenizer_model('gpt2')
    w.add_tokenizer_pre(pre)
    w.add_token_list([by_id.get(i, '[PAD%d]' % i) for i in range(size)])
    w.add_token_types([kinds.get(i, gguf.TokenType.NORMAL if i in by_id else gguf.TokenType.UNUSED)
                       for i in range(size)])
    w.add_token_merges([m if isinstance(m, str) else ' '.join(m) for m in merges])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def make_vocab(folder):
    name = os.path.basename(os.path.normpath(folder))
    pre = {'deepseek_v3': 'deepseek-v3', 'qwen3': 'qwen2', 'gptoss': 'gpt-4o'}[name]
    cache = os.environ.get('NUMOE_TEST_CACHE') or os.path.expanduser('~/.cache/numoe-tests')
    os.makedirs(cache, exist_ok=True)
    with lzma.open(os.path.join(folder, 'tokenizer.json.xz'), 'rt', encoding='utf-8') as f:
        text = f.read()
    write_vocab(os.path.join(cache, name + '.gguf'), pre, json.loads(text))
    tokenizer = Tokenizer.from_str(text)
    texts = load_texts()
    special = [t['content'] for t in json.loads(text)['added_tokens']][:40:4]
    texts += ['a' + s + ' b' + s + s for s in special] + ['<' * 3 + special[0][:-1] + special[0]]
    dump(name + '.json', {
        'texts': texts,
        'ids': [tokenizer.encode(t, add_special_tokens=False).ids for t in texts],
        'broken': [[b.hex(), broken_ids(tokenizer, b)] for b in BROKEN],
    })


if __name__ == '__main__':
    if sys.argv[1:2] == ['--vocab']:
        for folder in sys.argv[2:]:
            make_vocab(folder)
    elif len(sys.argv) == 1:
        make_small()
    else:
        sys.exit(__doc__)
