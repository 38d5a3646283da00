"""Records of a trainer's metrics.jsonl as (step, {name: number}), for to_tensorboard.py and to_wandb.py."""

import json
import os


def numbers(record, prefix=""):
    """Every number of a record by name: tasks as task_loss/NAME; lists by rank as their mean."""
    found = {}
    for key, value in record.items():
        if key in ("step", "validation", "refit", "run"):
            continue
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (int, float)):
            found[prefix + key] = float(value)
        elif isinstance(value, dict):
            found.update(numbers(value, prefix + key + "/"))
        elif isinstance(value, list) and value and all(isinstance(x, (int, float)) for x in value):
            found[prefix + key] = sum(value) / len(value)
    return found


def file_of(path):
    """metrics.jsonl of a run's folder, or the file itself."""
    return os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path


def read(path):
    """(headers, points): a header for each start; of a step that was done twice, the last counts."""
    remedy = "metrics.jsonl, as the trainer writes it into its -o DIRECTORY"
    headers, points = [], {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    break  # the run is writing it
                raise SystemExit(f"error: {path}:{number}: {error} ---> {remedy}")
            if not isinstance(record, dict) or not {"run", "validation", "refit", "step", "loss"} & set(record):
                raise SystemExit(f"error: {path}:{number}: no record of a run ---> {remedy}")
            if "run" in record:
                headers.append(record)
                points = {key: value for key, value in points.items() if key[0] <= record["run"]}
            elif "validation" in record:
                points[(record["validation"], "val/")] = numbers(record, "val/")
            elif "step" in record:
                points[(record["step"], "train/")] = numbers(record, "train/")
    if not points:
        raise SystemExit(f"error: {path}: no step in it ---> {remedy}")
    merged = {}
    for (step, _), values in sorted(points.items()):
        merged.setdefault(step, {}).update(values)
    return headers, sorted(merged.items())
