"""Records of JSON, CSV and Parquet files as (where, dict), where being what an error calls the place."""

import collections
import contextlib
import csv
import gzip
import io
import json
import sys
import zlib

from fetch import Failure

PARQUET_ROWS = 1024  # held in memory at a time
FORMS = "lines of JSON or one array, CSV or Parquet, plain or .gz"

# path; file: bytes, unpacked if they were gzip; is_parquet: by the file's first bytes, as nothing else here is a guess
Source = collections.namedtuple("Source", "path file is_parquet")


def unpacked(path, raw):
    magic = raw.peek(4)[:4]
    if magic == b"\x28\xb5\x2f\xfd":
        raise Failure(f"{path}: packed with zstd", "unpack it first: zstd -d")
    is_gzip = magic[:2] == b"\x1f\x8b"
    return Source(path, io.BufferedReader(gzip.GzipFile(fileobj=raw)) if is_gzip else raw, magic == b"PAR1")


@contextlib.contextmanager
def opened(path):
    """A Source; whatever happens to it is a Failure that names it. Pipes do: no byte is read twice."""
    try:
        with open(path, "rb") as raw:
            yield unpacked(path, raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Failure(f"{path}: damaged or cut off ({error})", "fetch it again") from None
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: not UTF-8 ({error.reason})", f"it takes {FORMS}") from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}",
                      "name a file that can be read; without --file it is fetched") from None


def text_of(source):
    return io.TextIOWrapper(source.file, encoding="utf-8-sig", newline="")


def read_text(path):
    with opened(path) as source:
        return text_of(source).read().replace("\r\n", "\n")


def parsed(text, where):
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Failure(f"{where}: not JSON ({error})", f"it takes {FORMS}") from None


def json_records(source):
    """Of one array, or of a line each."""
    lines = text_of(source)
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if text[0] == "[":
            for index, record in enumerate(parsed(line + lines.read(), source.path), 1):
                yield f"{source.path}, record {index}", record
            return
        yield f"{source.path}:{number}", parsed(text, f"{source.path}:{number}")


def unpacked_name(path):
    return path[:-len(".gz")] if path.endswith(".gz") else path


def csv_records(source):
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if unpacked_name(source.path).endswith(".tsv") else ","
    table = csv.DictReader(text_of(source), delimiter=delimiter, strict=True)
    try:
        for record in table:
            where = f"{source.path}:{table.line_num}"
            if None in record or None in record.values():
                raise Failure(f"{where}: not as many fields as the first line names",
                              "see that it is whole; a .tsv has tabs between fields")
            yield where, record
    except csv.Error as error:
        raise Failure(f"{source.path}:{table.line_num}: not CSV ({error})", f"it takes {FORMS}") from None


def parquet_records(path, fields):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Failure(f"{path}: a Parquet file", "pip install pyarrow") from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
        columns = fields if fields and set(fields) <= set(table.schema_arrow.names) else None
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=columns):
            for record in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", record
    except (pyarrow.ArrowException, OSError) as error:
        raise Failure(f"{path}: not a whole Parquet file ({(str(error) or type(error).__name__).splitlines()[0]})",
                      "fetch it again; from a pipe Parquet cannot be read") from None


def read(path, fields=None):
    """(where, record) of a file, whatever its form. Of Parquet only the columns fields, if it has all of these."""
    with opened(path) as source:
        if source.is_parquet:
            found = parquet_records(path, fields)
        elif unpacked_name(path).endswith((".csv", ".tsv")):
            found = csv_records(source)
        else:
            found = json_records(source)
        for where, record in found:
            if not isinstance(record, dict):
                raise Failure(f"{where}: not an object with fields", f"it takes {FORMS}")
            yield where, record


def need(where, record, *names):
    """The values of these fields, as text; None and a missing value are an error."""
    missing = [name for name in names if not isinstance(record.get(name), str)]
    if missing:
        raise Failure(f"{where}: a record without {', '.join(missing)}",
                      f"it has {', '.join(record) or 'no field'}; dev/data/huggingface.py takes any, with --rename")
    return [record[name] for name in names]
