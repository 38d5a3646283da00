#!/usr/bin/env python3
"""Databricks Dolly: 15,000 instructions with answers that people wrote, of 8 categories (CC BY-SA 3.0).

    dev/data/dolly.py --out data/dolly.jsonl
    dev/data/dolly.py --file databricks-dolly-15k.jsonl --out data/dolly.jsonl      one that is there already
    ./prepare_data --out data/dolly data/dolly.jsonl

A record's category is its task. Records with an empty answer are left out.
"""

import fetch
import records

URL = fetch.HUGGINGFACE + "/datasets/databricks/databricks-dolly-15k/resolve/main/databricks-dolly-15k.jsonl"


def convert(where, record):
    instruction, response, category = records.need(where, record, "instruction", "response", "category")
    if not response.strip():
        return None
    return {"task": category, "instruction": instruction, "context": record.get("context") or "", "response": response}


def main():
    options = fetch.parser(__doc__).parse_args()
    fetch.write(options, (convert(where, record) for path in fetch.sources(options, [URL])
                          for where, record in records.read(path)))


fetch.run(main)
