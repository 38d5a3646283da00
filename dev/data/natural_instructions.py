#!/usr/bin/env python3
"""Super-NaturalInstructions: over 1,600 tasks, each with a definition and up to 6,500 instances (Apache 2.0).

    dev/data/natural_instructions.py --per-task 100 --out data/ni.jsonl          fetches the archive of all
    dev/data/natural_instructions.py --split train --per-task 100 --out data/ni.jsonl
    dev/data/natural_instructions.py --file natural-instructions/tasks --out data/ni.jsonl   or files, or the archive
    ./prepare_data --long-samples cut-input-middle --out data/ni data/ni.jsonl

The definition stands before each input; of several outputs the first is the target. --per-task takes instances from all
over a task's file, evenly.
"""

import glob
import json
import os
import tarfile

import fetch
import records

URL = "https://github.com/allenai/natural-instructions/archive/refs/heads/master.tar.gz"
SPLITS = {"train": "splits/default/train_tasks.txt", "test": "splits/default/test_tasks.txt"}


def task_of(path):
    name = os.path.basename(path)
    return name[:-len(".json")] if name.endswith(".json") else name


def is_task(path):
    return os.path.basename(path).startswith("task") and path.endswith(".json")


def members(path, wanted):
    """(name, bytes) of the archive's files for which wanted(name); read once, in its order."""
    with records.opened(path) as source:
        try:
            with tarfile.open(fileobj=source.file, mode="r|") as archive:
                for member in archive:
                    if member.isfile() and wanted(member.name):
                        yield member.name, archive.extractfile(member).read()
        except tarfile.TarError as error:
            raise fetch.Failure(f"{path}: not a whole .tar.gz ({error})",
                                "--file takes it, .json or a folder; fetch it again") from None


def split_tasks(options, paths):
    """Names of the split's tasks; None: all."""
    if not options.split:
        return None
    for path in paths:
        if os.path.isdir(path):
            for folder in (path, os.path.dirname(os.path.abspath(path))):
                name = os.path.join(folder, SPLITS[options.split])
                if os.path.exists(name):
                    return set(records.read_text(name).split())
        elif not is_task(path):
            for _, data in members(path, lambda name: name.endswith(SPLITS[options.split])):
                return set(data.decode("utf-8").split())
    raise fetch.Failure(f"--split {options.split}: no {SPLITS[options.split]} beside the tasks",
                        "--file with the archive or a clone of the repository, or no --split")


def task_files(paths):
    """(where, text) of each task's file."""
    for path in paths:
        if os.path.isdir(path):
            found = sorted(filter(is_task, glob.glob(os.path.join(glob.escape(path), "**", "*.json"), recursive=True)))
            if not found:
                raise fetch.Failure(f"{path}: no task*.json in it", "name the folder tasks of the repository")
            for name in found:
                yield name, records.read_text(name)
        elif path.endswith(".json"):
            yield path, records.read_text(path)
        else:
            for name, data in members(path, is_task):
                yield f"{path}: {name}", data.decode("utf-8", "replace")


def instances(where, text, per_task):
    try:
        task = json.loads(text)
        definition, found = task["Definition"], task["Instances"]
        definition = definition if isinstance(definition, str) else "\n".join(definition)
        step = max(1, len(found) / per_task) if per_task else 1
        for i in range(min(len(found), per_task or len(found))):
            instance = found[int(i * step)]
            outputs = instance["output"]
            output = outputs if isinstance(outputs, str) else outputs[0] if outputs else ""
            yield {"task": task_of(where), "inputs": f"Definition: {definition}\n\nInput: {instance['input']}\nOutput:",
                   "targets": output} if output.strip() else None
    except json.JSONDecodeError as error:
        raise fetch.Failure(f"{where}: not JSON ({error})", "fetch it again") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise fetch.Failure(f"{where}: not a task of Natural Instructions ({type(error).__name__}: {error})",
                            "it has Definition, and Instances with input and output") from None


def main():
    parser = fetch.parser(__doc__)
    parser.add_argument("--per-task", type=fetch.count, metavar="N", help="instances of a task [all]")
    parser.add_argument("--split", choices=sorted(SPLITS), help="the benchmark's tasks to train on, or to test [all]")
    options = parser.parse_args()

    def converted():
        paths = list(fetch.sources(options, [URL]))
        names = split_tasks(options, paths)
        for where, text in task_files(paths):
            if names is None or task_of(where) in names:
                yield from instances(where, text, options.per_task)

    fetch.write(options, converted())


fetch.run(main)
