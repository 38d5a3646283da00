#!/usr/bin/env python3
"""Tulu 3's mixture for fine-tuning: 939,000 conversations of many sources (ODC-BY; some have their own license).

    dev/data/tulu3.py --out data/tulu3.jsonl                                 1.4 GB of Parquet
    dev/data/tulu3.py --sources flan_v2 oasst1 --out data/two.jsonl          these only
    dev/data/tulu3.py --file 0000.parquet --limit 1000 --out data/tulu3.jsonl
    ./prepare_data --template chatml --out data/tulu3 data/tulu3.jsonl

A record's source is its task, without the owner's name and without "_converted". Parquet needs: pip install pyarrow.
"""

import fetch
import records

DATASET = "allenai/tulu-3-sft-mixture"


def task_of(source):
    name = source.rsplit("/", 1)[-1]
    return name[:-len("_converted")] if name.endswith("_converted") else name


def convert(where, record):
    messages = record.get("messages")
    if not isinstance(messages, list):
        raise fetch.Failure(f"{where}: a record without messages", f"give it a file of {DATASET}")
    turns = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise fetch.Failure(f"{where}: message {number} is not an object", "its form is role, content")
        role, content = records.need(f"{where}, message {number}", message, "role", "content")
        turns.append({"role": role, "content": content})
    if not any(turn["role"] == "assistant" and turn["content"].strip() for turn in turns):
        return None
    return {"task": task_of(records.need(where, record, "source")[0]), "messages": turns}


def main():
    parser = fetch.parser(__doc__)
    parser.add_argument("--sources", nargs="+", metavar="NAME", help="only these [all]")
    options = parser.parse_args()
    urls = [] if options.file else fetch.parquet_urls(DATASET, None, "train")
    wanted = {task_of(name) for name in options.sources or ()}

    def converted():
        found = set()
        for path in fetch.sources(options, urls):
            for where, record in records.read(path, ["messages", "source"]):
                source = task_of(record["source"]) if isinstance(record.get("source"), str) else None
                found.add(source)
                if not wanted or source in wanted:
                    yield convert(where, record)
        if wanted - found:
            raise fetch.Failure(f"no source {', '.join(sorted(wanted - found))}",
                                f"there are {', '.join(sorted(filter(None, found)))}")

    fetch.write(options, converted())


fetch.run(main)
