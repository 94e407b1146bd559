"""What the benchmarks of this folder share: stamp, file and table of a measurement."""
import array
import json
import os
import random
import struct
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def commit():
    """Of this tree; "unknown" where it is no checkout, or git is not installed."""
    try:
        out = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"],
                             capture_output=True, text=True).stdout.strip()
    except OSError:
        out = ""
    return out or "unknown"


def stamp(command):
    """Where, of what, when and how something is measured."""
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    return {"machine": {"cpu": cpu, "cores": len(os.sched_getaffinity(0))}, "commit": commit(),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": command}


def write_tokens(path, vocab, n):
    """A shard of n random tokens, as llm.c writes them."""
    rng = random.Random(1)
    tokens = array.array("H", (rng.randrange(vocab) for _ in range(n)))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, n, *([0] * 253)) + tokens.tobytes())


def load(path):
    with open(path) as f:
        return json.load(f)


def save(path, key, value):
    """Replaces one key of a file that several benchmarks may write to; no key: all of it."""
    data = value
    if key:
        data = load(path) if os.path.exists(path) else {}
        data[key] = value
    with open(path, "w") as f:
        json.dump(data, f, indent=1)
        f.write("\n")


def put_case(path, key, command, case, name, order):
    """A case of a campaign into the list `cases` of a key of a file (None: of the file), in place
    of what it has of that case; name(case) tells cases apart, and those that are not in `order` go.
    Each keeps the commit at which it was measured."""
    new = stamp(command)
    data = load(path) if os.path.exists(path) else {}
    old = data.get(key, {}) if key else data
    cases = {name(c): c for c in old.get("cases", [])
             if "commit" in c} | {name(case): {"commit": new.pop("commit")} | case}
    kept = {k: v for k, v in old.items() if k != "commit"}
    save(path, key, kept | new | {"cases": [cases[n] for n in order if n in cases]})


def commits(cases):
    return ", ".join(dict.fromkeys(c["commit"] for c in cases))


def add_page(parser):
    parser.add_argument("--page", help="a Markdown file to put the table in; measures nothing")
    parser.add_argument("--check", action="store_true",
                        help="with --page: change nothing, and fail where that would")


def put(args, name, text):
    """Puts the text between the lines <!-- name:begin --> and <!-- name:end --> of args.page."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    with open(args.page) as f:
        old = f.read()
    if begin not in old or end not in old:
        sys.exit(f"{args.page} has no lines {begin.strip()} and {end}")
    new = old[: old.index(begin) + len(begin)] + text + old[old.index(end):]
    if args.check and new != old:
        sys.exit(f"{args.page}: the table is not the one that is measured: run {sys.argv[0]} "
                 f"--page {args.page}")
    if not args.check:
        with open(args.page, "w") as f:
            f.write(new)
