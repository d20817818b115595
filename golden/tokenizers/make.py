#!/usr/bin/env python3
"""Makes the tokenizer goldens: strings.jsonl, pieces.txt and ids-NAME.txt.

    pip install gguf tokenizers
    make.py LIBLLAMA.so NAME=VOCABULARY.gguf ...

- strings.jsonl: one JSON string a line, made here from a fixed seed.
- pieces.txt: how Hugging Face `tokenizers` cuts each string by each pre-tokenizer of FAMILIES.
- ids-NAME.txt: what llama.cpp makes of each string with the vocabulary NAME, without and with special tokens.

Expected values are hashes, six hexadecimal digits a string, sixteen strings a line: `hash` below.
LIBLLAMA.so is llama.cpp built as a shared library (made with version 0.5.0, commit 0c1e57098).
For byte-level BPE the ids are also compared with `tokenizers`, and differences are printed.
"""

import ctypes
import json
import pathlib
import random
import sys

import gguf
import tokenizers
from tokenizers import pre_tokenizers

HERE = pathlib.Path(__file__).parent
COUNT = 2304

# --- strings -------------------------------------------------------------------------------------------------------

FIXED = """
|Hello world| Hello world|  Hello|   Hello|Hello, World!|!!!!!!|' era|I'm we'll they've you're he'd it's don't
|I'M WE'LL THEY'VE YOU'RE HE'D IT'S DON'T|'S't'RE've'm'LL'd|'|''s'|it''s|I'llx|'sa|'ſ|K'K|o'clock 'twas|'em
|3|33|333|3333|33333|333333|3333333|33333333|1,234,567.89|0x1F600|1e-10|3.14159|v1.2.3|2024-05-06T07:08:09Z|½ ¾ ⅓|²³¹|١٢٣٤|१२३४|一二三|Ⅻ
|camelCase|HTTPServer|XMLHttpRequest2|snake_case_name|SCREAMING_CASE|kebab-case|ÀÉÎõü|ÀÉa|aÀÉ|ÉCOLE École école|ǅ ǈ ǋ|ʰʱʲ|ßẞ|İıIi|ΑΒΓαβγ|АБВабв
|<s>|</s>|<unk>|<pad>|<bos>|<eos>|<|endoftext|>|<|im_start|>user\\nHi<|im_end|>\\n|<start_of_turn>user\\nHi<end_of_turn>|<|begin_of_text|>|<|eot_id|>
|a<s>b</s>c| <s> </s> |<s><s>|<|im_start|><|im_start|>|<|im_start|im_end|>|<|fim_prefix|>x<|fim_suffix|>|<tool_call>{}</tool_call>|<repo_name>a/b|[INST] hi [/INST]
|<0x0A>|<0x00>|<0xFF>|<0xGG>|▁|▁▁a|a▁b|a ▁ b|Ġ|ĠHello|Ċ|<unused0>|<unused99>|[multimodal]|<table><tr><td>|<h1>x</h1>|<|reserved_special_token_0|>|<|file_sep|>
|\\n|\\n\\n|\\n\\n\\n|\\n\\n\\n\\n\\n\\n\\n|\\r\\n|\\r|\\t|\\t\\t|\\t\\n| \\n|\\n |  \\n  |a\\n|a\\n\\nb|a \\n b|a\\r\\n\\r\\nb|a\\t\\tb|\\n\\t\\n|\\u00a0|\\u3000|a\\u3000b|\\u2028|\\u0085x|a\\u00a0b|\\u200b|\\ufeffx
|\\u0000|a\\u0000b|\\u0001\\u0002|\\u007f|\\u001b[31mred\\u001b[0m|\\ue000|\\ufffd|\\uffff|\\U0010ffff|\\U000e0001|\\u0378|e\\u0301|\\u0301|a\\u0301\\u0302\\u0303b|क्षि|ก็|한국어|각
|🦙|🚀 (normal) 😶‍🌫️ ✅|👩‍👩‍👧‍👦|🏳️‍🌈|👍🏽|1️⃣|🇫🇷🇩🇪|☃️|©®™|€100 £5 ¥3 $1|→←↔|∀x∈ℝ|a≤b≠c|𝔘𝔫𝔦|𝟘𝟙|ﬁ|Å|①②|㍿
|Cửa Việt|нещо на Български|កាន់តែពិសេសអាចខលចេញ|我想在apple工作1314151天～|日本語のテキスト、カタカナ。|שלום עולם|مرحبا بالعالم|Ελληνικά|ไทยภาษา|தமிழ்|ქართული|አማርኛ
|if (x == 0) {\\n\\treturn -1;\\n}|def f(x):\\n    return x**2\\n|#include <stdio.h>\\n|a->b.c[0]++|//////|/* c */|http://a.b/c?d=e&f=%20|\\\\n\\\\t|`code`|***bold***|---|===|___|...|…|"q" 'q' «q» “q”
|$$\\\\frac{a}{b}$$|a/b/c|\\n/\\n/|x/\\r\\n|!?\\n!?|)\\n(|.\\n\\n.|~~~\\n|^|\\||`|<=>|+-*/=|@user #tag|a@b.co|50% off|C++ C#|x²+y²=z²|H₂O
"""

WORDS = """the of and to in is that for it as was with be by on not he I this are or his from at which but have an had they you
were their one all we can her has there been if more when will would who so no Transformer attention token model naïve café
über straße garçon señor Århus Łódź čeština Việt Nam İstanbul привет мир здравствуйте Київ Ελλάδα και שלום עולם مرحبا العالم سلام
नमस्ते दुनिया বাংলা தமிழ் తెలుగు ไทย ประเทศ ខ្មែរ ລາວ မြန်မာ 你好 世界 人工智能 日本語 こんにちは カタカナ 한국어 안녕하세요 ქართული հայերեն አማርኛ ꦗꦮ
print self return import lambda async await struct fn let mut const void int float char null None True false function
HTTPServer getElementById snake_case fooBar BAR_BAZ x1 y2 i18n don't I'll it's WE'VE you'd 'tis rock'n'roll""".split()

PUNCTUATION = list(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`'\"") + ["...", "->", "=>", "==", "!=", "::", "//", "/*", "*/", "—", "“", "”", "、", "。", "«", "»", "¿", "؟", "।", "…", "'s", "'RE", "n't"]
SPACES = [" "] * 12 + ["  ", "   ", "    ", "        ", " " * 17, " " * 40, "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", " \n", "\n ", "\n    ", " \t ", "\u00a0", "\u3000", "\u2003", "\u200b", "\n" * 9]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<|eot_id|>", "<|begin_of_text|>", "<0x41>", "▁", "<unk>", "<|", "|>", "<tool_call>", "<|file_sep|>", "[INST]", "<unused7>", "<b>", "</b>"]
EMOJI = ["😀", "🦙", "👍🏽", "👩‍👩‍👧", "🏳️‍🌈", "❤️", "1️⃣", "🇧🇷", "🫠", "✅", "☃", "🀄", "𓀀", "🧑🏿‍🚀"]
# First and last code point of scripts and of plain oddities.
RANGES = [(0x20, 0x7E)] * 4 + [(0xA1, 0xFF)] * 2 + [(0x100, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A), (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FE), (0xB80, 0xBFA), (0xE01, 0xE5B), (0xE80, 0xEDF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20BF), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2E80, 0x2FD5), (0x3000, 0x30FF), (0x3400, 0x4DB5), (0x4E00, 0x9FA5), (0xA000, 0xA48C), (0xA640, 0xA69F), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F), (0xFF01, 0xFFEE), (0x10000, 0x100FA), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x20000, 0x20100), (0xE0020, 0xE007F), (0, 0x1F), (0x7F, 0xA0)]


def make_strings():
    strings = [json.loads('"' + s.replace('"', '\\"').replace("\\U0010ffff", "\U0010ffff").replace("\\U000e0001", "\U000e0001") + '"')
               for line in FIXED.strip().splitlines() for s in split_fixed(line)]
    rng = random.Random(20240229)

    def run(low, high):
        start, end = low, high
        return "".join(chr(rng.randint(start, end)) for _ in range(rng.randint(1, 7)))

    def atom():
        kind = rng.random()
        if kind < 0.40:
            word = rng.choice(WORDS)
            return rng.choice([word, word, word, word.upper(), word.capitalize(), word + rng.choice(WORDS)])
        if kind < 0.55:
            return rng.choice(PUNCTUATION) * rng.choice([1, 1, 1, 2, 5])
        if kind < 0.65:
            return str(rng.randrange(10 ** rng.randint(1, 12)))
        if kind < 0.80:
            return run(*rng.choice(RANGES))
        if kind < 0.86:
            return rng.choice(EMOJI)
        if kind < 0.90:
            return rng.choice(SPECIAL)
        if kind < 0.95:
            return rng.choice(SPACES)
        return "".join(rng.choice("abcdefghij XYZ09'_-\n") for _ in range(rng.randint(1, 14)))

    while len(strings) < COUNT:
        parts = []
        for _ in range(rng.choice([1, 2, 3, 3, 4, 5, 6, 8])):
            parts.append(atom())
            if rng.random() < 0.6:
                parts.append(rng.choice(SPACES))
        strings.append("".join(parts))
    return strings


def split_fixed(line):
    """Splits at bars, which stay part of `<|name|>`, `|>` and an escaped `\\|`."""
    parts, part, i = [], "", 1
    while i < len(line):
        two = line[i:i + 2]
        if two == "\\|":
            part, i = part + "|", i + 2
        elif two in ("<|", "|>"):
            part, i = part + two, i + 2
        elif line[i] == "|":
            parts, part, i = parts + [part], "", i + 1
        else:
            part, i = part + line[i], i + 1
    return parts + [part]


# --- hashes --------------------------------------------------------------------------------------------------------


def hash(*lists):
    """FNV-1a over little-endian 32-bit numbers, a separator after each list; the low 24 bits, folded."""
    h = 0xCBF29CE484222325
    for numbers in lists:
        for number in list(numbers) + [0xFFFFFFFF]:
            for byte in number.to_bytes(4, "little"):
                h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{(h ^ h >> 24 ^ h >> 48) & 0xFFFFFF:06x}"


def write_hashes(name, hashes):
    lines = [" ".join(hashes[i:i + 16]) for i in range(0, len(hashes), 16)]
    (HERE / name).write_text("\n".join(lines) + "\n")


# --- pieces --------------------------------------------------------------------------------------------------------

SUFFIX = "(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
FAMILIES = {
    "llama-bpe": [SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL],
    "qwen2": [SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL],
    "qwen35": [SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL],
    "smollm": [r"\p{N}", GPT2],
    "gpt-2": [GPT2],
    "gpt-4o": [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL],
    "tekken": [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
               r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL],
    "falcon": [r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"],
}


def splitter(patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns])


def piece_lengths(split, string):
    """Lengths in bytes."""
    return [len(piece.encode()) for piece, _ in split.pre_tokenize_str(string)] if string else []


# --- ids -----------------------------------------------------------------------------------------------------------


class ModelParams(ctypes.Structure):
    """`llama_model_params`: only `vocab_only` matters."""

    _fields_ = [("devices", ctypes.c_void_p), ("overrides", ctypes.c_void_p), ("ints", ctypes.c_int32 * 5),
                ("tensor_split", ctypes.c_void_p), ("progress", ctypes.c_void_p), ("progress_data", ctypes.c_void_p),
                ("kv_overrides", ctypes.c_void_p), ("vocab_only", ctypes.c_bool), ("flags", ctypes.c_bool * 5)]


class Llama:
    def __init__(self, library):
        self.lib = lib = ctypes.CDLL(library)
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        lib.llama_model_load_from_file.restype = ctypes.c_void_p
        lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
                                       ctypes.c_bool, ctypes.c_bool]

    def open(self, path):
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        assert model, path
        self.vocab = self.lib.llama_model_get_vocab(model)

    def encode(self, string, special):
        raw = string.encode()
        out = (ctypes.c_int32 * (4 * len(raw) + 16))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, special)
        assert n >= 0, n
        return list(out[:n])


def hugging_face(path):
    """The same vocabulary in `tokenizers`, or None if it is no byte-level BPE of a known family."""
    fields = gguf.GGUFReader(path).fields
    text = lambda key: fields[key].contents() if key in fields else None
    family = {"starcoder": "smollm", "refact": "smollm", "command-r": "smollm", "mpt": "gpt-2"}.get(text("tokenizer.ggml.pre"), text("tokenizer.ggml.pre"))
    if text("tokenizer.ggml.model") != "gpt2" or family not in FAMILIES:
        return None
    tokens, kinds = text("tokenizer.ggml.tokens"), text("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in text("tokenizer.ggml.merges")]
    model = tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=family in ("llama-bpe", "tekken"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter(FAMILIES[family]), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.add_tokens([tokenizers.AddedToken(t, normalized=False, special=False) for t, k in zip(tokens, kinds) if k == 4])
    return tokenizer


def main():
    llama = Llama(sys.argv[1])
    strings = make_strings()
    assert len(strings) == COUNT
    (HERE / "strings.jsonl").write_text("".join(json.dumps(s, ensure_ascii=False) + "\n" for s in strings))
    splitters = {name: splitter(patterns) for name, patterns in FAMILIES.items()}
    write_hashes("pieces.txt", [hash(*(piece_lengths(split, s) for split in splitters.values())) for s in strings])
    for argument in sys.argv[2:]:
        name, path = argument.split("=")
        llama.open(path)
        ids = [(llama.encode(s, False), llama.encode(s, True)) for s in strings]
        write_hashes(f"ids-{name}.txt", [hash(*pair) for pair in ids])
        second = hugging_face(path)
        differ = [s for s, (plain, _) in zip(strings, ids) if second and second.encode(s).ids != plain]
        print(name, "tokens:", sum(len(p) for p, _ in ids), "differ from tokenizers:", len(differ) if second else "-", differ[:8])


main()
