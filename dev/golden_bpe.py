#!/usr/bin/env python3
"""Golden tokens for test/test_tokenizer.c, made with Hugging Face's `tokenizers` (pip install tokenizers).

    dev/golden_bpe.py --tokenizer ../shared/tokenizer

Writes test/golden/bpe_tiny_vocab.json, bpe_tiny_merges.txt (a small vocabulary trained on the texts below),
and bpe_texts.json (the texts with their tokens in both vocabularies); bpe_qwen2_tokenizer.json and
bpe_llama3_tokenizer.json (the small vocabulary, split as these models do) and bpe_like_texts.json (their tokens);
bpe_digits_texts.json (the tokens of bpe_tiny_tokenizer.json with Digits before ByteLevel). The texts below are our own; GPT-2's vocabulary is not copied.
"""
import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "a", " a", "  a", "a ", "a  ", "\r\n", "\0", "a\0b",
    "Hello, world!", "The planner cuts the batch; the pipeline runs it.", "the the the  the   the",
    "don't, won't, they'll, I'm, you've, we're, he'd, it's, 'tis 'twas O'Neill's dogs' 's't're've'm'll'd",
    "DON'T SHOUT: IT'S LOUD, WE'RE DEAF", "don\u2019t use \u2018curly\u2019 apostrophes' \u201cquotes\u201d",
    "x = 3.14159; y = 2**31 - 1; z[0] += 0xFF", "1234567890 12 345 6,789.00 \u00bd \u2167 \u00b2\u00b3 \u0663\u0664",
    "spaces    in    runs     and   tabs\t\t\tand \t mixed \t\n  \n\n indented\n    four\n\tone tab\n",
    "trailing spaces   \n   leading\n \n  \n   x", "a\n\n\nb\r\n\r\nc\n \n \nd", "\u00a0no-break\u00a0\u00a0spaces\u00a0",
    "en\u2002em\u2003thin\u2009hair\u200aideographic\u3000line\u2028para\u2029nel\u0085narrow\u202fmath\u205fogham\u1680end",
    "zero\u200bwidth\u200cjoin\u200der\ufeffbom mongolian\u180evowel\u180e separator\u001fcontrol\u001c\u001d\u001e",
    "vertical\vtab form\ffeed", "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m \u0141\u00f3d\u017a stra\u00dfe \u0130stanbul",
    "combining: e\u0301 a\u0308\u0323 n\u0303 \u0915\u094d\u0937\u093f Z\u0351\u036b\u0343a\u0328l\u0321g\u0322o\u0327",
    "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442, \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac 123",
    "\u4e2d\u6587\u5206\u8bcd\u6ca1\u6709\u7a7a\u683c\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\ud55c\uad6d\uc5b4 \ubb38\uc7a5.",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f !",
    "\U0001d54f\U0001d7d9 math \U00010348 gothic \U0001f0a1 \U000e0041 tag \U0010ffff last \ufffd \ufffe",
    "mixed\u0441\u043a\u0440\u0438\u043ft \u03b1bc\u0434 abc\u4e2d123\u6587\u2167x_y-z@w#v", "snake_case camelCase kebab-case __init__ ...---===***",
    "<|endoftext|>", "before<|endoftext|>after <|endoftext|> <|endof", "if (a<b && c>d) { return !x; } // done\n",
    "https://example.org/a%20b?q=1&r=2#frag user@example.org", "{\"task\": \"x\", \"inputs\": \"\\u00e9\\n\"}",
    "a" * 300, "ab" * 200, " " * 257, "\n" * 65, "!" * 130, "9" * 100, "\u00e9" * 90, "\U0001f600" * 40, " x" * 70,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis", "SELECT * FROM t WHERE a='b';",
]


def random_texts(count, seed):
    """Short strings over characters chosen to meet in every combination of classes."""
    rng = random.Random(seed)
    alphabet = list("aabeestz'''   \n\t019.,!") + ["'s", "'ll", "\u00e9", "\u0301", "\u4e2d", "\u00a0", "\u3000", "\u0663",
                                                 "\U0001f600", "\u200d", "\u180e", "\u0085", " the", "\u00df", "\u2028"]
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def byte_level(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


def encode_all(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def train_tiny(texts, folder):
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab_path, merges_path = f"{folder}/bpe_tiny_vocab.json", f"{folder}/bpe_tiny_merges.txt"
    with open(vocab_path, "w", encoding="utf-8") as f:
        json.dump(model["vocab"], f, ensure_ascii=False, indent=0)
        f.write("\n")
    with open(merges_path, "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    return byte_level(models.BPE.from_file(vocab_path, merges_path))


SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


def like(folder, specials, digits, ignore_merges):
    """The small vocabulary without its end-of-text token, which is an added one here. With ignore_merges every third
    merge is gone, so that there are words that only the vocabulary makes."""
    model = models.BPE.from_file(f"{folder}/bpe_tiny_vocab.json", f"{folder}/bpe_tiny_merges.txt")
    plain = json.loads(byte_level(model).to_str())["model"]
    vocab = {token: i - 1 for token, i in plain["vocab"].items() if token != "<|endoftext|>"}
    assert sorted(vocab.values()) == list(range(len(vocab)))
    merges = [tuple(m) for i, m in enumerate(plain["merges"]) if not ignore_merges or i % 3 != 2]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT % digits), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.add_special_tokens([AddedToken(t) for t in specials])
    return tokenizer


def write_likes(texts, folder):
    qwen2 = like(folder, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "", False)
    qwen2.normalizer = normalizers.NFC()
    llama3 = like(folder, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                  "{1,3}", True)
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))])])
    qwen2.save(f"{folder}/bpe_qwen2_tokenizer.json", pretty=False)
    llama3.save(f"{folder}/bpe_llama3_tokenizer.json", pretty=False)
    texts = [t for t in texts if "<|endoftext|>" not in t]
    with open(f"{folder}/bpe_like_texts.json", "w", encoding="ascii") as f:
        rows = [json.dumps({"text": t, "qwen2": a, "llama3": b}, separators=(",", ":")) for t, a, b in
                zip(texts, encode_all(qwen2, texts), encode_all(llama3, texts))]
        f.write("[\n" + ",\n".join(rows) + "\n]\n")


def write_digits(texts, folder):
    rows = [{"text": t} for t in texts if len(t) < 100 and any(c.isnumeric() for c in t)][::2]
    for name in "digits", "runs":
        tokenizer = Tokenizer.from_file(f"{folder}/bpe_tiny_tokenizer.json")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=name == "digits"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False)])
        for row, ids in zip(rows, encode_all(tokenizer, [row["text"] for row in rows])):
            row[name] = ids
    with open(f"{folder}/bpe_digits_texts.json", "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="../shared/tokenizer", help="folder with vocab.json and merges.txt")
    parser.add_argument("--out", default="test/golden")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    gpt2 = byte_level(models.BPE.from_file(f"{args.tokenizer}/vocab.json", f"{args.tokenizer}/merges.txt"))
    texts = TEXTS + random_texts(200, 1)
    tiny = train_tiny(texts, args.out)
    with open(f"{args.out}/bpe_texts.json", "w", encoding="ascii") as f:
        rows = zip(texts, encode_all(tiny, texts), encode_all(gpt2, texts))
        lines = [json.dumps({"text": t, "tiny": a, "gpt2": b}, separators=(",", ":")) for t, a, b in rows]
        f.write("[\n" + ",\n".join(lines) + "\n]\n")
    write_likes(texts, args.out)
    write_digits(texts, args.out)


if __name__ == "__main__":
    main()
