#!/usr/bin/env python3
"""FLAN: tasks as instructions, 10 templates each, of Muennighoff/flan (each task has its own license).

    dev/data/flan.py --out data/flan.jsonl                           a mixture of short and long tasks, see --tasks
    dev/data/flan.py --tasks arc_easy cnn_dailymail --per-task 5000 --out data/two.jsonl
    dev/data/flan.py --file arc_easy_10templates_train.jsonl --out data/arc.jsonl       one that is there already
    ./prepare_data --out data/flan data/flan.jsonl

A record's task is its field of this name, else its file's name, both without "_10templates" and "_train". Files of the
FLAN collection (SirNeural/flan_v2, tens of GB each) are read with --file; the task that they name is the collection.
"""

import os
import re

import fetch
import records

URL = fetch.HUGGINGFACE + "/datasets/Muennighoff/flan/resolve/main/train/{}_10templates_train.jsonl"
TASKS = ["arc_easy", "bool_q", "cnn_dailymail", "common_gen", "cosmos_qa", "drop", "gigaword", "imdb_reviews",
         "multi_news", "openbookqa", "piqa", "rte", "samsum", "squad_v2", "sst2", "wmt16_translate_deen"]


def task_of(name):
    return re.sub(r"(_10templates)?(_(train|test|validation))?$", "", name)


def base_name(path):
    return re.sub(r"(\.(jsonl|json|parquet|csv|tsv))?(\.gz)?$", "", os.path.basename(path))


def convert(where, record, name):
    inputs, targets = records.need(where, record, "inputs", "targets")
    if not targets.strip():
        return None
    task = record.get("task")
    return {"task": task_of(task if isinstance(task, str) and task else name), "inputs": inputs, "targets": targets}


def main():
    parser = fetch.parser(__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="NAME", help=f"[{' '.join(TASKS)}]")
    parser.add_argument("--per-task", type=fetch.count, metavar="N", help="the first N records of a task [all]")
    options = parser.parse_args()

    def converted():
        written = {}
        for path in fetch.sources(options, [URL.format(task_of(name)) for name in options.tasks]):
            for where, record in records.read(path, ["inputs", "targets", "task"]):
                made = convert(where, record, base_name(path))
                if made is not None and options.per_task:
                    written[made["task"]] = written.get(made["task"], 0) + 1
                    if written[made["task"]] > options.per_task:
                        if "task" not in record:
                            break  # all of the file is this task
                        continue
                yield made

    fetch.write(options, converted())


fetch.run(main)
