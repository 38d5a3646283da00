#!/usr/bin/env python3
"""Stanford Alpaca: 52,002 instructions with answers of text-davinci-003 (CC BY-NC 4.0).

    dev/data/alpaca.py --out data/alpaca.jsonl
    dev/data/alpaca.py --file alpaca_data.json --out data/alpaca.jsonl      one that is there already
    ./prepare_data --template alpaca --out data/alpaca data/alpaca.jsonl

Any file of its form does (alpaca-cleaned, alpaca_gpt4_data). Records with an empty answer are left out.
"""

import fetch
import records

URL = "https://raw.githubusercontent.com/tatsu-lab/stanford_alpaca/main/alpaca_data.json"


def convert(where, record):
    instruction, output = records.need(where, record, "instruction", "output")
    if not output.strip():
        return None
    return {"instruction": instruction, "input": record.get("input") or "", "output": output}


def main():
    options = fetch.parser(__doc__).parse_args()
    fetch.write(options, (convert(where, record) for path in fetch.sources(options, [URL])
                          for where, record in records.read(path)))


fetch.run(main)
