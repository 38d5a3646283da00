#!/usr/bin/env python3
"""Any data set of Hugging Face, and any Parquet, CSV, TSV or JSON file, as lines of JSON.

    dev/data/huggingface.py --dataset openai/gsm8k --config main --out data/gsm8k.jsonl
    dev/data/huggingface.py --dataset stanfordnlp/imdb --rename text=inputs label=targets --task imdb --out imdb.jsonl
    dev/data/huggingface.py --dataset roneneldan/TinyStories --fields text --limit 100000 --out data/stories.jsonl
    dev/data/huggingface.py --file a.csv --rename review=inputs label=targets --out - | ./prepare_data --out data/a -

Of a data set its files of Parquet are fetched, as Hugging Face's viewer has made them. One that is not for everyone is
fetched with HF_TOKEN set; HF_ENDPOINT names a mirror. Parquet needs: pip install pyarrow. What prepare_data recognises
is in doc/data.md; numbers become text, so that they can be targets.
"""

import fetch
import records


def renames(pairs):
    found = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise fetch.Failure(f"--rename {pair}: not OLD=NEW", "for example --rename review=inputs label=targets")
        found[old] = new
    return found


def value_of(where, name, value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, bytes):
        raise fetch.Failure(f"{where}: field {name} is bytes", "leave it out: --fields with the names of the others")
    return value


def convert(where, record, fields, new_names, task):
    missing = [name for name in [*fields, *new_names] if name not in record]
    if missing:
        raise fetch.Failure(f"{where}: no field {', '.join(missing)}", f"it has {', '.join(record)}")
    kept = fields or record
    made = {name: value_of(where, name, record[name]) for name in kept
            if name not in new_names and record[name] is not None}
    for old, new in new_names.items():
        if record[old] is not None:
            made[new] = value_of(where, old, record[old])
    if task:
        made["task"] = task
    return made


def main():
    parser = fetch.parser(__doc__)
    parser.add_argument("--dataset", metavar="NAME", help="OWNER/NAME at Hugging Face")
    parser.add_argument("--config", metavar="NAME", help="of the data set, where it has several")
    parser.add_argument("--split", default="train", metavar="NAME", help="[train]")
    parser.add_argument("--fields", nargs="+", default=[], metavar="NAME", help="only these, and those renamed [all]")
    parser.add_argument("--rename", nargs="+", default=[], metavar="OLD=NEW", help="other names for fields")
    parser.add_argument("--task", metavar="NAME", help="a task for all records; of a field: --rename FIELD=task")
    options = parser.parse_args()
    if bool(options.dataset) == bool(options.file):
        raise fetch.Failure("nothing to read" if not options.file else "two things to read",
                            "--dataset NAME or --file FILE")
    new_names = renames(options.rename)
    urls = fetch.parquet_urls(options.dataset, options.config, options.split) if options.dataset else []
    columns = [*options.fields, *new_names] if options.fields else None
    fetch.write(options, (convert(where, record, options.fields, new_names, options.task)
                          for path in fetch.sources(options, urls) for where, record in records.read(path, columns)))


fetch.run(main)
