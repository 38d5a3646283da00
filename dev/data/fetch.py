"""What the scripts of dev/data share: options, download into a cache, the file that is written, errors.

A script is a docstring (its --help), a function from a record of the source to one of ours, and

    fetch.run(main)

Whatever goes wrong is raised as Failure(what, what to do) and ends it with one line and status 1.
"""

import argparse
import fcntl
import http.client
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

HUGGINGFACE = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
QUIET_SECONDS = 2  # what takes longer says how far it is
ATTEMPTS = 3
TIMEOUT_SECONDS = 30
BLOCK_BYTES = 1 << 20
FILE_HINT = "fetch it elsewhere and name it with --file"


class Failure(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, what, remedy):
        super().__init__(f"{what} ---> {remedy}")


def run(main):
    try:
        main()
        sys.stdout.flush()
    except Failure as failure:
        sys.exit(f"error: {failure}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has enough: the flush at exit is not to complain
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def count(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def bare_parser(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_downloads(parser):
    parser.add_argument("--downloads", default="data/downloads", metavar="DIR",
                        help="where what was fetched is kept, so that it is fetched once [data/downloads]")


def parser(doc):
    made = bare_parser(doc)
    made.add_argument("--out", required=True, metavar="FILE", help="the .jsonl to write, - is standard output")
    made.add_argument("--file", nargs="+", metavar="FILE", help="read these, fetch nothing; .gz as they are")
    made.add_argument("--limit", type=count, metavar="N", help="end after N records")
    add_downloads(made)
    return made


class Progress:
    """A line to standard error now and then, once QUIET_SECONDS have passed; on a terminal always the same line."""

    def __init__(self):
        self.began = time.monotonic()
        self.is_terminal = sys.stderr.isatty()
        self.next = self.began + QUIET_SECONDS
        self.has_line = False

    def say(self, text):
        """text: a function, called only where there is something to say."""
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (0.5 if self.is_terminal else 10)
        print(f"\r{text()}\033[K" if self.is_terminal else text(), end="" if self.is_terminal else "\n",
              file=sys.stderr, flush=True)
        self.has_line = self.is_terminal

    def end(self):
        if self.has_line:
            print(file=sys.stderr)
        self.has_line = False

    def seconds(self):
        return max(time.monotonic() - self.began, 1e-9)


def size(num_bytes):
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def request(url, headers=()):
    made = urllib.request.Request(url, headers={"User-Agent": "dynapipe-dev-data", **dict(headers)})
    token = os.environ.get("HF_TOKEN")
    if token and url.startswith(HUGGINGFACE + "/"):
        made.add_unredirected_header("Authorization", f"Bearer {token}")  # not for the hosts it sends us to
    return made


def refusal(url, error, hint):
    """Failure for an answer that another attempt does not change, else None."""
    if error.code in (401, 403):
        return Failure(f"{url}: HTTP {error.code}, not for everyone",
                       f"accept its terms in a browser and set HF_TOKEN, or {hint}")
    if error.code in (400, 404, 410):
        return Failure(f"{url}: HTTP {error.code}, it is not there", f"it may have moved: {hint}")
    return None


def attempts(url, hint, once):
    """once() until it comes through; what the network does may be better the next time."""
    for attempt in range(ATTEMPTS):
        try:
            return once()
        except urllib.error.HTTPError as error:
            failure = refusal(url, error, hint)
            if failure:
                raise failure from None
            reason = f"HTTP {error.code}"
        except (urllib.error.URLError, ssl.SSLError, http.client.HTTPException, ConnectionError, TimeoutError,
                ValueError) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        if attempt + 1 < ATTEMPTS:
            time.sleep(2**attempt)
    raise Failure(f"{url}: {reason}, {ATTEMPTS} times", f"try again (it goes on where it was), or {hint}")


def fetch_json(url, hint=FILE_HINT):
    def once():
        with urllib.request.urlopen(request(url), timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    return attempts(url, hint, once)


def local_name(url):
    """The address as a path, as wget -x has it."""
    parts = urllib.parse.urlsplit(url)
    names = [urllib.parse.unquote(name) for name in (parts.netloc + parts.path).split("/")]
    return os.path.join(*(re.sub(r"[^\w.=-]", "_", name) for name in names if name not in ("", ".", "..")))


def download_part(url, part, etag_path):
    """Appends to the open file part what it lacks; complete when this returns."""
    have = part.seek(0, os.SEEK_END)
    headers = {}
    if have and os.path.exists(etag_path):
        with open(etag_path, encoding="utf-8") as file:
            headers = {"Range": f"bytes={have}-", "If-Range": file.read()}  # another file by now: all of it comes
    try:
        answer = urllib.request.urlopen(request(url, headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.truncate(0)  # longer than the file: begun anew at the next attempt
        raise ConnectionError("not the file that was begun") from None
    with answer:
        if answer.status != 206:
            have = 0
            part.truncate(0)
            part.seek(0)
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        etag = answer.headers.get("ETag", "")
        if etag.startswith('"'):
            with open(etag_path, "w", encoding="utf-8") as file:
                file.write(etag)
        elif os.path.exists(etag_path):
            os.unlink(etag_path)
        progress = Progress()
        begun = have
        try:
            while True:
                block = answer.read(BLOCK_BYTES)
                if not block:
                    break
                part.write(block)
                have += len(block)
                progress.say(lambda: f"{url}: {size(have)} of {size(total) if total else 'unknown'}, "
                                     f"{size((have - begun) / progress.seconds())}/s")
        finally:
            progress.end()
            part.flush()
        if total is not None and have != total:
            raise ConnectionError(f"ended after {have:,} of {total:,} bytes")


def download(url, path, hint=FILE_HINT):
    """The file at url as path: at once if it is there, else fetched; what was begun is gone on with."""
    if os.path.exists(path):
        return path
    part_path = path + ".part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(part_path, "ab") as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failure(f"{part_path}: another process writes it", "wait for it, then start again") from None
            print(f"fetching {url}", file=sys.stderr)
            try:
                attempts(url, hint, lambda: download_part(url, part, part_path + ".etag"))
            finally:
                if not os.path.getsize(part_path):
                    os.unlink(part_path)
            os.replace(part_path, path)
    except OSError as error:
        raise Failure(f"{error.filename or path}: {error.strerror}", "another folder, with room") from None
    if os.path.exists(part_path + ".etag"):
        os.unlink(part_path + ".etag")
    return path


def sources(options, urls):
    """Paths of what --file names, or of urls, each fetched when it is asked for."""
    if options.file:
        yield from options.file
        return
    for url in urls:
        yield download(url, os.path.join(options.downloads, local_name(url)))


def parquet_urls(dataset, config, split):
    """Where a data set's files of Parquet are, as the viewer of Hugging Face lists them; config: None, the only one."""
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", dataset):
        raise Failure(f"--dataset {dataset}: no name of a data set", "OWNER/NAME, as its address has it")
    url = f"{HUGGINGFACE}/api/datasets/{urllib.parse.quote(dataset)}/parquet"
    listed = fetch_json(url, "see that the name is right, and that its page shows a viewer; "
                             "else fetch its files and name them with --file")
    if not isinstance(listed, dict) or not all(isinstance(splits, dict) for splits in listed.values()):
        raise Failure(f"{url}: not a list of files", "fetch them in a browser and name them with --file")
    if config is None:
        config = "default" if "default" in listed else next(iter(listed), None) if len(listed) == 1 else None
    if config not in listed:
        raise Failure(f"--config: {dataset} has {', '.join(sorted(listed)) or 'none'}", "name one of these")
    if split not in listed[config]:
        raise Failure(f"--split {split}: {dataset} has {', '.join(listed[config])}", "name one of these")
    return listed[config][split]


def plain(value):
    """Of what JSON has no form for: times and decimal numbers as text."""
    if isinstance(value, (bytes, bytearray)):
        raise Failure("a field with bytes in it", "leave it out: dev/data/huggingface.py --fields names the others")
    return str(value)


def encoded(record):
    text = json.dumps(record, ensure_ascii=False, default=plain) + "\n"
    return text.encode("utf-8", "replace")  # half a surrogate pair, as some sets have, becomes a question mark


def write(options, records):
    """Writes records (None: left out) to --out, a line each: all of it, or nothing."""
    path = options.out
    is_stream = path == "-" or (os.path.exists(path) and not os.path.isfile(path))
    temporary = None if is_stream else path + ".tmp"
    written = left_out = 0
    progress = Progress()
    try:
        if not is_stream:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(1 if path == "-" else temporary or path, "wb", closefd=path != "-") as out:
            for record in records:
                if record is None:
                    left_out += 1
                    continue
                out.write(encoded(record))
                written += 1
                if written == options.limit:
                    break
                progress.say(lambda: f"{written:,} records")
        if written + left_out == 0:
            raise Failure(f"{', '.join(options.file) if options.file else 'the source'}: no record in the input",
                          "see that the file is whole")
        if written == 0:
            raise Failure(f"none of {left_out:,} records has an answer", "see that it is the right file")
        if temporary:
            os.replace(temporary, path)
            temporary = None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}",
                      "another --out, in a folder that can be written and has room") from None
    finally:
        progress.end()
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    omitted = f", {left_out:,} without an answer left out" if left_out else ""
    print(f"{'standard output' if path == '-' else path}: {written:,} records{omitted}", file=sys.stderr)
