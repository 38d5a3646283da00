#!/usr/bin/env python3
"""Golden tokens for test/test_tokenizer.c, made with Google's `sentencepiece` and Hugging
Face's `transformers` and `tokenizers` (pip install sentencepiece protobuf transformers tokenizers).

Writes to test/golden: spiece_tiny.model, a SentencePiece model in T5's form (<pad> 0, </s> 1, <unk> 2) trained on the
sentences made up below; spiece_texts.json, texts with their ids in it and in ByT5's tokenizer; bpe_tiny_tokenizer.json,
the vocabulary of dev/golden_bpe.py as `tokenizers` saves it; spiece_llama.model, BPE in Llama's form (<unk> 0, <s> 1,
</s> 2, bytes, nothing normalized), and spiece_llama_texts.json. The model's character map is a small part of T5's
(nmt_nfkc), which alone has 240 KB: all its white space and control characters, NFKC of some blocks.
"""
import argparse
import json
import os
import random
import shutil
import tempfile
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer

from golden_bpe import TEXTS, random_texts

SPECIAL_TEXTS = ["</s>", "<pad> a </s> b", "a <extra_id_0> b<extra_id_99>", "<unk>"]

MORE_TEXTS = [
    "The planner cuts the batch.", "translate English to German: the house is small.", "  leading and trailing  ",
    "tabs\tand\nnew lines\r\nand \u3000wide\u00a0blanks\u2003here", "\u2581literal\u2581blanks \u2581 \u2581\u2581",
    "\uff21\uff22\uff23\uff11\uff12 \ufb01ne \ufb03 x\u00b2 \u00bd \u2460 \u210c \uff76\uff9e", "e\u0301 \u00e9 A\u030a \u00c5",
    "zzzqqq \u4f60\u597d \U0001f600\U0001f600 \U0001f600 unknown\u4e2d\u6587unknown", "\u0000\u0001 \u007f control \u000b \u001c",
    "\u200bzero\u200cwidth\u200d \ufeff\ufeff", "a" * 200, "the " * 100, "x" * 3 + " " * 50 + "y", "\u00ad soft\u00adhyphen",
    "1234567890 3.14 -7", "{braces} [brackets] <angles> ~tilde~ ^caret^", "CamelCase UPPER lower", "\u0130stanbul \u00df \u1e9e",
]


def made_up_sentences(count, seed):
    rng = random.Random(seed)
    nouns = "house train river garden paper engine window letter number planner batch stage pipeline token".split()
    verbs = "cuts runs reads writes keeps finds builds sends waits learns".split()
    adjectives = "small large quick slow old new green quiet long short".split()
    sentences = []
    for _ in range(count):
        a, b, c, d = rng.choice(nouns), rng.choice(verbs), rng.choice(adjectives), rng.choice(nouns)
        sentences.append(rng.choice([
            f"The {c} {a} {b} the {d}.", f"translate English to German: the {a} is {c}", f"{a.capitalize()} and {d}, {c}!",
            f"What is {rng.randint(0, 99)} + {rng.randint(0, 99)}?", f"caf\u00e9 na\u00efve \u00fcber {a} \u2014 {c}; (the {d})",
        ]))
    return sentences


def character_map():
    """Rows of a sentencepiece rule file: code points, a tab, what they become. A part of nmt_nfkc."""
    rows = {}
    for c in [*range(0x01, 0x09), 0x0b, *range(0x0e, 0x20), 0x7f, 0x8f, 0x9f]:
        rows[(c,)] = ()
    for c in [0x09, 0x0a, 0x0c, 0x0d, 0xa0, 0x1680, *range(0x2000, 0x2010), 0x2028, 0x2029, 0x202f, 0x205f, 0x2581, 0x3000,
              0xfeff, 0xfffd]:
        rows[(c,)] = (0x20,)
    blocks = [range(0xa1, 0x100), range(0x130, 0x134), range(0x2070, 0x2090), range(0x2100, 0x2120), range(0x2150, 0x2180),
              range(0x2460, 0x2480), range(0xfb00, 0xfb07), range(0xff01, 0xffa0)]
    for c in [c for block in blocks for c in block]:
        if rows.get((c,)) is None and unicodedata.normalize("NFKC", chr(c)) != chr(c):
            rows[(c,)] = tuple(map(ord, unicodedata.normalize("NFKC", chr(c))))
    for base in "aeiouAEIOUnNcCyY":
        for mark in "\u0300\u0301\u0302\u0303\u0308\u030a\u0327":
            if len(unicodedata.normalize("NFKC", base + mark)) == 1:
                rows[(ord(base), ord(mark))] = (ord(unicodedata.normalize("NFKC", base + mark)),)
    text = [" ".join(f"{c:X}" for c in key) + "\t" + " ".join(f"{c:X}" for c in value) for key, value in sorted(rows.items())]
    return "\n".join(text) + "\n"


def train_llama(sentences, path):
    with tempfile.TemporaryDirectory() as scratch:
        here = os.getcwd()
        os.chdir(scratch)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_prefix="spiece", vocab_size=400, pad_id=-1, unk_id=0, bos_id=1, eos_id=2,
            model_type="bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1)
        os.chdir(here)
        shutil.copyfile(f"{scratch}/spiece.model", path)


def write_llama(folder):
    train_llama(made_up_sentences(2000, 1), f"{folder}/spiece_llama.model")
    spiece = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/spiece_llama.model")
    with open(f"{folder}/spiece_llama_texts.json", "w", encoding="ascii") as file:
        rows = [json.dumps({"text": t, "llama": spiece.encode(t)}, separators=(",", ":")) for t in TEXTS + MORE_TEXTS]
        file.write("[\n" + ",\n".join(rows) + "\n]\n")


def train(sentences, path, vocab_size, rules):
    """In a folder of its own: the model keeps the names of its files, which are then the same in every run."""
    with tempfile.TemporaryDirectory() as scratch:
        with open(f"{scratch}/rules.tsv", "w", encoding="ascii") as file:
            file.write(rules)
        here = os.getcwd()
        os.chdir(scratch)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_prefix="spiece", vocab_size=vocab_size, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            model_type="unigram", minloglevel=2, num_threads=1, hard_vocab_limit=False,
            normalization_rule_tsv="rules.tsv")
        os.chdir(here)
        shutil.copyfile(f"{scratch}/spiece.model", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="test/golden")
    args = parser.parse_args()
    model_path = f"{args.out}/spiece_tiny.model"
    train(made_up_sentences(2000, 1), model_path, 220, character_map())
    texts = TEXTS + MORE_TEXTS + random_texts(200, 2) + SPECIAL_TEXTS
    spiece, byt5 = sentencepiece.SentencePieceProcessor(model_file=model_path), ByT5Tokenizer()
    with open(f"{args.out}/spiece_texts.json", "w", encoding="ascii") as file:
        lines = []
        for text in texts:
            bytes_ids = byt5.convert_tokens_to_ids(byt5._tokenize(text))
            lines.append(json.dumps({"text": text, "pieces": spiece.encode(text), "byt5": bytes_ids}, separators=(",", ":")))
        file.write("[\n" + ",\n".join(lines) + "\n]\n")

    bpe = Tokenizer(models.BPE.from_file(f"{args.out}/bpe_tiny_vocab.json", f"{args.out}/bpe_tiny_merges.txt"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder, bpe.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    bpe.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    bpe.save(f"{args.out}/bpe_tiny_tokenizer.json", pretty=False)
    write_llama(args.out)


if __name__ == "__main__":
    main()
