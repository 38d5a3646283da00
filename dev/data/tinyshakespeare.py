#!/usr/bin/env python3
"""Tiny Shakespeare: 1.1 MB of his plays, as texts all of which is learnt (public domain).

    dev/data/tinyshakespeare.py --out data/shakespeare.jsonl
    dev/data/tinyshakespeare.py --file input.txt --chars 500 --out data/shakespeare.jsonl       any text does
    ./prepare_data --out data/shakespeare data/shakespeare.jsonl

Cut between speeches (at blank lines) only, so a speech longer than --chars is a record of its own.
"""

import re

import fetch
import records

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


def pieces(text, num_chars):
    piece = ""
    for speech in re.split(r"\n[ \t]*\n\s*", text.strip()):
        if piece and len(piece) + len("\n\n") + len(speech) > num_chars:
            yield {"text": piece}
            piece = ""
        piece = f"{piece}\n\n{speech}" if piece else speech
    if piece:
        yield {"text": piece}


def main():
    parser = fetch.parser(__doc__)
    parser.add_argument("--chars", type=fetch.count, default=2000, metavar="N", help="of a record, at most [2000]")
    options = parser.parse_args()
    fetch.write(options, (piece for path in fetch.sources(options, [URL])
                          for piece in pieces(records.read_text(path), options.chars)))


fetch.run(main)
