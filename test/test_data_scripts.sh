#!/usr/bin/env bash
# dev/data: every script on a small file of the form that it is for, then through prepare_data. What they fetch comes from
# a server in here (HF_ENDPOINT), which breaks off in the middle of the first file.
# concerns: dev/data
. "$(dirname "$0")/check_lib.sh"
command -v python3 >/dev/null || skip_all "no python3"
make --no-print-directory -s prepare_data || exit 1
dir=$work server=
trap 'rm -rf "$dir"; [ -z "$server" ] || kill "$server"' EXIT
python=${PYTHON:-python3}
run() { "$python" "dev/data/$1.py" "${@:2}"; }
fails() {  # words, script...: exit status 1 and a message with these words
    local words=$1 output rc
    shift
    output=$(run "$@" 2>&1 >/dev/null)
    rc=$?
    check "'$words' expected with exit 1; got $rc: $output" [ "$rc:$(grep -cF -- "$words" <<<"$output")" = 1:1 ]
}
# name, form as prepare_data says it, samples: what the script wrote, prepared
prepared() {
    check "$1 prepares" ./prepare_data --val-fraction 0 --out "$dir/data" "$dir/$1.jsonl" >"$dir/log" 2>&1
    check "$1 is '$2': $(head -1 "$dir/log")" grep -qF "$1.jsonl: $3 records, $2" "$dir/log"
    check "$1 has no bad record" bash -c "! grep -q bad '$dir/log'"
}
tasks() { sed -n '2,/^all /p' "$dir/log" | sed '/^task /d; /^all /d' | awk '{ print $1 }' | tr '\n' ' '; }

"$python" - "$dir" <<'END' || exit 1
import gzip, json, sys
dir = sys.argv[1] + "/"
tulu = [{"id": "x_%d" % i, "messages": [{"content": "q%d" % i, "role": "user"}, {"content": "a", "role": "assistant"},
         {"content": "r", "role": "user"}, {"content": "b", "role": "assistant"}], "source": "ai2-adapt-dev/flan_v2" if i else "ai2-adapt-dev/oasst1"}
        for i in range(3)]
open(dir + "tulu-rows.jsonl", "w").write("".join(json.dumps(row) + "\n" for row in tulu))
with gzip.open(dir + "arc_easy_train.jsonl.gz", "wt") as f:
    for i in range(4):
        f.write(json.dumps({"inputs": "Q%d?" % i, "targets": "A", **({"task": "arc_easy"} if i % 2 else {})}) + "\n")
json.dump({"Definition": ["Do it."], "Categories": ["x"], "Positive Examples": [], "Instances": [{"id": "1", "input": "in", "output": ["out", "other"]}] * 3},
          open(dir + "task001_quoref.json", "w"))
open(dir + "input.txt", "w").write("First Citizen:\nBefore we proceed.\n\nAll:\nSpeak, speak.\n\n" + "\n\n".join("Speaker %d:\n%s" % (i, "word " * 30) for i in range(20)) + "\n")
open(dir + "table.csv", "w").write('review,label\n"good, very",1\nbad,0\n')
try:
    import pyarrow, pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "t%d" % i, "n": i} for i in range(2500)]), dir + "texts.parquet")
except ImportError:
    pass
END

check "flan" run flan --file "$dir/arc_easy_train.jsonl.gz" --out "$dir/flan.jsonl" >/dev/null
prepared flan "inputs -> targets" 4
check "one task, by field or by file: $(tasks)" [ "$(tasks)" = "arc_easy " ]
check "natural_instructions" run natural_instructions --per-task 2 --file "$dir/task001_quoref.json" --out "$dir/ni.jsonl" >/dev/null
prepared ni "inputs -> targets" 2
check "the definition stands first" grep -qF '"inputs": "Definition: Do it.\n\nInput: in\nOutput:", "targets": "out"' "$dir/ni.jsonl"
tar -C "$dir" --transform 's,^,natural-instructions-master/tasks/,' -czf "$dir/ni.tar.gz" task001_quoref.json
check "the archive of all" run natural_instructions --file "$dir/ni.tar.gz" --out "$dir/ni.jsonl" >/dev/null
prepared ni "inputs -> targets" 3
check "tinyshakespeare" run tinyshakespeare --chars 400 --file "$dir/input.txt" --out "$dir/ts.jsonl" >/dev/null
prepared ts "text (all of it is learnt)" "$(wc -l <"$dir/ts.jsonl")"
check "and all of it is there" [ "$("$python" -c 'import json, sys; print(sum(json.loads(l)["text"].count("Speaker") for l in open(sys.argv[1])))' "$dir/ts.jsonl")" -eq 20 ]
check "a CSV file" run huggingface --file "$dir/table.csv" --rename review=inputs label=targets --task sentiment --out "$dir/csv.jsonl" >/dev/null
prepared csv "inputs -> targets" 2
check "standard output, and a limit" [ "$(run huggingface --file "$dir/table.csv" --limit 1 --out - | wc -l)" -eq 1 ]
if [ -e "$dir/texts.parquet" ]; then
    check "Parquet" run huggingface --file "$dir/texts.parquet" --fields text --out "$dir/parquet.jsonl" >/dev/null
    prepared parquet "text (all of it is learnt)" 2500
else
    printf 'PAR1 and so on' >"$dir/x.parquet"
    fails "a Parquet file ---> pip install pyarrow" huggingface --file "$dir/x.parquet" --out "$dir/x"
    skip "Parquet: no pyarrow ---> pip install pyarrow, PYTHON=/path/python3"
fi
fails "a record without inputs, targets" flan --file "$dir/tulu-rows.jsonl" --out "$dir/x"
fails "no record in the input" flan --file <(echo '[]') --out "$dir/x"
fails "not JSON" flan --file "$dir/input.txt" --out "$dir/x"
fails "No such file" flan --file "$dir/absent" --out "$dir/x"
fails "--dataset NAME or --file FILE" huggingface --out "$dir/x"
check "a failure writes nothing" [ ! -e "$dir/x" -a ! -e "$dir/x.tmp" ]

# Fetching, from a server with Range and If-Range, as the Hub has.
mkdir -p "$dir/web" && cp "$dir/tulu-rows.jsonl" "$dir/web" && gunzip -c "$dir/arc_easy_train.jsonl.gz" >"$dir/web/arc.jsonl"
cat >"$dir/server.py" <<'END'
import http.server, json, os, sys
dir = sys.argv[1]
FILES = {"/datasets/Muennighoff/flan/resolve/main/train/arc_easy_10templates_train.jsonl": "arc.jsonl", "/rows.jsonl": "tulu-rows.jsonl"}
broken = set()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        host = "http://" + self.headers["Host"]
        if self.path == "/api/datasets/allenai/tulu-3-sft-mixture/parquet":
            data = json.dumps({"default": {"train": [host + "/rows.jsonl"]}}).encode()
        elif self.path == "/api/datasets/a/two/parquet":
            data = json.dumps({"x": {"test": []}, "y": {"train": []}}).encode()
        elif self.path in FILES:
            data = open(os.path.join(dir, FILES[self.path]), "rb").read()
        else:
            return self.send_error(404)
        first = 0
        if self.headers.get("Range") and self.headers.get("If-Range") == '"e1"':
            first = int(self.headers["Range"][len("bytes="):-1])
        self.send_response(206 if first else 200)
        self.send_header("ETag", '"e1"')
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        is_broken = self.path in FILES and self.path not in broken
        broken.add(self.path)
        self.wfile.write(data[first:first + 50] if is_broken else data[first:])
    def log_message(self, *args):
        with open(os.path.join(dir, "log"), "a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Range')}\n")
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
open(os.path.join(dir, "port.tmp"), "w").write(str(server.server_port))
os.rename(os.path.join(dir, "port.tmp"), os.path.join(dir, "port"))
server.serve_forever()
END
"$python" "$dir/server.py" "$dir/web" & server=$!
for _ in $(seq 100); do [ -e "$dir/web/port" ] && break; sleep 0.1; done
export HF_ENDPOINT=http://127.0.0.1:$(cat "$dir/web/port") no_proxy=127.0.0.1
check "flan, fetched" run flan --tasks arc_easy --downloads "$dir/cache" --out "$dir/fetched.jsonl" >/dev/null
check "is what the file gives" cmp -s "$dir/fetched.jsonl" "$dir/flan.jsonl"
check "what broke off is gone on with: $(cat "$dir/web/log")" grep -q "arc_easy_10templates_train.jsonl bytes=50-" "$dir/web/log"
: >"$dir/web/log"
check "flan again" run flan --tasks arc_easy --downloads "$dir/cache" --out "$dir/fetched.jsonl" >/dev/null
check "fetches nothing" [ ! -s "$dir/web/log" ]
check "any data set, from the list of its files" run huggingface --dataset allenai/tulu-3-sft-mixture --rename source=task --downloads "$dir/cache" --limit 2 --out "$dir/fetched.jsonl" >/dev/null
check "ends at its limit" [ "$(wc -l <"$dir/fetched.jsonl")" -eq 2 ]
prepared fetched "chat (messages)" 2
fails "--config: a/two has x, y ---> name one of these" huggingface --dataset a/two --out "$dir/x"
fails "--split train: a/two has test" huggingface --dataset a/two --config x --out "$dir/x"
fails "HTTP 404, it is not there" huggingface --dataset a/absent --out "$dir/x"
fails "HTTP 404, it is not there ---> it may have moved: fetch it elsewhere and name it with --file" flan --downloads "$dir/cache" --out "$dir/x"
check "where GPT-2's tokenizer is" [ "$(run tokenizer gpt2 --urls --out "$dir" | wc -l)" -eq 2 ]
finish
