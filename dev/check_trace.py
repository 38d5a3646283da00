#!/usr/bin/env python3
"""Does a trace (--trace of a trainer) keep what Perfetto and chrome://tracing need?

    dev/check_trace.py trace.json

Events of a row nest, every row has a name, every arrow one begin and one end, each in an event of its row and
the end not earlier, every message that has a length an arrow, counters never go back in time. Exit status 1
where something is not so; the first of each kind is named.
"""
import json
import sys
from collections import Counter, defaultdict

faults = Counter()


def fault(kind, about):
    if not faults[kind]:
        print(f"{sys.argv[1]}: {kind}: {about}")
    faults[kind] += 1


def ns(event, key):
    return round(event[key] * 1000)


def check_rows(spans):
    """Sorted by begin, a longer one first: each lies in the one that is open, or behind it."""
    for row, events in spans.items():
        open_ends = []
        for event in sorted(events, key=lambda e: (ns(e, "ts"), -ns(e, "dur"))):
            begin, end = ns(event, "ts"), ns(event, "ts") + ns(event, "dur")
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                fault("half overlaps what is before it in its row", (row, event["name"], event["ts"]))
            open_ends.append(end)


def event_at(spans, end):
    at = ns(end, "ts")
    found = [e for e in spans[end["pid"], end["tid"]] if ns(e, "ts") <= at < ns(e, "ts") + ns(e, "dur")]
    return found[-1] if found else None


def check_arrows(spans, begins, ends):
    for key in begins.keys() | ends.keys():
        if len(begins[key]) != 1 or len(ends[key]) != 1:
            fault("an arrow without both ends, or with more", key)
            continue
        begin, end = begins[key][0], ends[key][0]
        if ns(end, "ts") < ns(begin, "ts"):
            fault("an arrow back in time", key)
        send, receive = event_at(spans, begin), event_at(spans, end)
        if send is None or receive is None:
            fault("an arrow that ends in no event", key)
        elif (send["args"]["mb"], send["args"]["peer"]) != (receive["args"]["mb"], receive["args"]["rank"]):
            fault("an arrow to another message", (send["name"], receive["name"]))
    sends = sum(e["name"].startswith("send_") and e["dur"] > 0 for row in spans.values() for e in row)
    if len(begins) > sends:
        fault("more arrows than sends", (len(begins), sends))
    return sends


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stdout if "--help" in sys.argv or "-h" in sys.argv else sys.stderr)
        return 0 if "--help" in sys.argv or "-h" in sys.argv else 2
    spans, names, begins, ends, counters = (defaultdict(list) for _ in range(5))
    for event in json.load(open(sys.argv[1]))["traceEvents"]:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(event)
            if event["ts"] < 0 or event["dur"] < 0:
                fault("a time before 0", event["name"])
        elif event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]].append(event["args"]["name"])
        elif event["ph"] in "sf":
            (begins if event["ph"] == "s" else ends)[event["cat"], event["id"]].append(event)
        elif event["ph"] == "C":
            if counters[event["pid"], event["name"]] and event["ts"] < counters[event["pid"], event["name"]][-1]:
                fault("a counter that goes back in time", event["name"])
            counters[event["pid"], event["name"]].append(event["ts"])
        elif event["ph"] != "M":
            fault("an unknown phase", event["ph"])
    for row in spans:
        if len(names[row]) != 1:
            fault("a row without a name, or with more", row)
    check_rows(spans)
    sends = check_arrows(spans, begins, ends)
    print(f"{sys.argv[1]}: {sum(map(len, spans.values()))} events in {len(spans)} rows, {len(begins)} arrows of {sends} "
          f"sends, {len(counters)} counters: {'as it should be' if not faults else f'{sum(faults.values())} faults'}")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{sys.argv[1]}: {type(error).__name__} {error} ---> give a file that --trace wrote")
