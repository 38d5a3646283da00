#!/usr/bin/env python3
"""Fetches a tokenizer's files, of which prepare_data --tokenizer takes the folder.

    dev/data/tokenizer.py gpt2 --out data/gpt2            vocab.json, merges.txt
    dev/data/tokenizer.py flan-t5 --out data/flan-t5      spiece.model
    dev/data/tokenizer.py t5 --urls --out data/t5         only says where they are

All sizes of a model have the same tokenizer. Files that are there already are kept.
"""

import json
import os
import shlex
import sys

import fetch

# model: the repository at Hugging Face, files
MODELS = {
    "gpt2": ("openai-community/gpt2", ["vocab.json", "merges.txt"]),
    "t5": ("google-t5/t5-small", ["spiece.model"]),
    "flan-t5": ("google/flan-t5-small", ["spiece.model"]),
    "mt5": ("google/mt5-small", ["spiece.model", "tokenizer_config.json"]),
    "tinyllama": ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", ["tokenizer.model"]),
    "qwen2": ("Qwen/Qwen2-0.5B", ["tokenizer.json", "tokenizer_config.json"]),
}


def is_whole(path):
    """Is it such a file, rather than, say, the page of a network that wants a login?"""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".model"):
        return data[:1] == b"\n" and len(data) > 1000  # protobuf, field 1: the first piece
    try:
        text = data.decode("utf-8")
        if path.endswith(".json"):
            return isinstance(json.loads(text), dict)
    except ValueError:
        return False
    lines = [line for line in text.splitlines() if line and not line.startswith("#version")]
    return bool(lines) and all(len(line.split(" ")) == 2 for line in lines)


def main():
    parser = fetch.bare_parser(__doc__)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--urls", action="store_true", help="print where the files are, fetch nothing")
    options = parser.parse_args()
    repository, files = MODELS[options.model]
    urls = {name: f"{fetch.HUGGINGFACE}/{repository}/resolve/main/{name}" for name in files}
    if options.urls:
        print("\n".join(urls.values()))
        return
    for name, url in urls.items():
        path = os.path.join(options.out, name)
        fetch.download(url, path, f"fetch it elsewhere and put it at {path}")
        try:
            whole = is_whole(path)
        except OSError as error:
            raise fetch.Failure(f"{path}: {error.strerror}", "a file that can be read") from None
        if not whole:
            raise fetch.Failure(f"{path}: not what {url} is to be", "delete it and start again")
        print(f"{path}: {os.path.getsize(path):,} bytes", file=sys.stderr)
    print(f"./prepare_data --tokenizer {shlex.quote(options.out)}")


fetch.run(main)
