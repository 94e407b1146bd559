"""Shared by the benchmarks of this folder: options, stamp, file and table of a measurement, and the
emulated cluster (tests/netlab/lab.sh), whose ranks have priority over other processes."""
import argparse
import array
import atexit
import json
import math
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(TOP, "tests/netlab/lab.sh")


def commit():
    """The commit of this tree; "unknown" without a checkout or git."""
    try:
        out = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"],
                             capture_output=True, text=True).stdout.strip()
    except OSError:
        out = ""
    return out or "unknown"


def processor():
    """The name of the processor, as in data/stamp.h."""
    with open("/proc/cpuinfo") as f:
        lines = [line.partition(":") for line in f]
    of = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    name = of.get("model name", os.uname().machine)
    if any(c.isdigit() for c in name) or not {"cpu family", "model"} <= of.keys():
        return name
    return f"{name}, family {of['cpu family']} model {of['model']}"


def stamp(command):
    """Machine, commit, date and command of a measurement."""
    return {"machine": {"cpu": processor(), "cores": len(os.sched_getaffinity(0))},
            "commit": commit(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": command}


def write_tokens(path, vocab, n):
    """Writes a shard of n random tokens in llm.c's format."""
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
    """Replaces one key of a file that several benchmarks write to; without a key the whole file."""
    data = value
    if key:
        data = load(path) if os.path.exists(path) else {}
        data[key] = value
    with open(path, "w") as f:
        json.dump(data, f, indent=1)
        f.write("\n")


def put_case(path, key, command, case, name, order):
    """Writes a case of a campaign into the list `cases` under a key of a file (None: at the top),
    in place of an earlier one with the same name(case). Cases that are not in `order` are removed.
    Each case keeps the commit at which it was measured."""
    new = stamp(command)
    data = load(path) if os.path.exists(path) else {}
    old = data.get(key, {}) if key else data
    cases = {name(c): c for c in old.get("cases", [])}
    cases[name(case)] = {"commit": new.pop("commit")} | case
    save(path, key, old | new | {"cases": [cases[n] for n in order if n in cases]})


def campaign(args, page, key, command, cases, named, of, measure, table, say):
    """With --page puts the table of a key of the file (None: of the file) into the page. Otherwise
    measures the cases whose name contains --only, and writes each into the file as soon as it is
    done. named(case) and of(result) give the same name. measure(case, args, folder) gets a folder
    for caches."""
    if args.page:
        data = load(args.out)
        return put(args, page, table(data[key] if key else data))
    for case in cases:
        if args.only not in named(case):
            continue
        begin = time.time()
        with tempfile.TemporaryDirectory() as folder:
            r = measure(case, args, folder)
        put_case(args.out, key, command, r, of, [named(c) for c in cases])
        print(f"{say(r)}; {time.time() - begin:.0f} s", flush=True)


def commits(cases):
    return ", ".join(dict.fromkeys(c["commit"] for c in cases))


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def against(base, other):
    """The median of the ratios of pairs of two lists of milliseconds, less 1, and its standard
    error, from the quartiles."""
    q = sorted(b / a - 1 for a, b in zip(base, other))
    low, middle, high = statistics.quantiles(q)
    return round(middle, 5), round(1.253 / 1.349 * (high - low) / len(q) ** 0.5, 5)


def build(name):
    return os.path.join(TOP, "build", name)


def parser(doc):
    """A parser whose --help begins with this text as it is."""
    return argparse.ArgumentParser(description=doc,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def arguments(doc, out):
    """A parser with --out, a file of bench/results, and --page."""
    p = parser(doc)
    p.add_argument("--out", default=os.path.join(TOP, "bench/results", out),
                   help=f"file of the results (default bench/results/{out})")
    add_page(p)
    return p


def add_page(parser):
    parser.add_argument("--page", help="a Markdown file to put the table in; measures nothing")
    parser.add_argument("--check", action="store_true",
                        help="with --page: change nothing, and fail if the page is out of date")


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


def markdown(head, rows, note=""):
    """The text of a table and a note below it: its head with ' | ' between the cells, rows as lists
    of cells."""
    head = head.split(" | ")
    line = lambda cells: "|" + "".join(f" {c} |" if c != "" else " |" for c in cells)
    lines = [line(head), "|" + "---|" * len(head)] + [line(r) for r in rows]
    if note:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def origin(d):
    """Machine, date and command of a measurement, as a sentence."""
    of = commits(d["cases"]) if "cases" in d else d["commit"]
    return (f"{d['machine']['cpu']}, {d['machine']['cores']} cores, {d['date'][:10]}, commit {of}: "
            f"`{d['command']}`.")


# ---- line charts

def chart(path, height, x_axis, y_axis, title, lines):
    """Writes an SVG. x_axis: title, then positions from 0 to 1 and their labels. y_axis: positions
    and labels. lines: name, colour, and curves of points (x, y) with their style; the name is
    written at the right edge, at the height of the end of the first curve. Positions and points are
    shares of the axes."""
    width, left, right, top, bottom = 780, 60, 190, 24, 46

    def at(x, y):
        return (left + (width - left - right) * x, height - bottom - (height - top - bottom) * y)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" '
           'fill="white"/>',
           f'<text x="{left}" y="14" fill="#555">{title}</text>']
    for place, label in y_axis:
        y = at(0, place)[1]
        out.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for place, label in x_axis[1:]:
        out.append(f'<text x="{at(place, 0)[0]:.1f}" y="{height - bottom + 18}" '
                   f'text-anchor="middle">{label}</text>')
    out.append(f'<text x="{at(0.5, 0)[0]:.0f}" y="{height - 8}" text-anchor="middle">'
               f'{x_axis[0]}</text>')
    ends = []
    for name, colour, curves in lines:
        for points, style in curves:
            path_d = "L".join("{:.1f} {:.1f}".format(*at(*p)) for p in points)
            out.append(f'<path d="M{path_d}" fill="none" stroke="{colour}"{style}/>')
        out += ['<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="{}"/>'.format(*at(*p), colour)
                for p in curves[0][0]]
        ends.append([at(*curves[0][0][-1])[1], colour, name])
    ends.sort()
    for above, below in zip(ends, ends[1:]):
        below[0] = max(below[0], above[0] + 15)  # names do not overlap
    out += [f'<text x="{width - right + 10}" y="{y + 4:.1f}" fill="{colour}">{name}</text>'
            for y, colour, name in ends]
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


# ---- the emulated cluster

def up(hosts, rate, trunk="", delay_us=0):
    """Starts an emulated cluster. It is removed when this program ends, in whatever way."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    atexit.unregister(down)
    atexit.register(down)
    subprocess.run([LAB, "up", str(hosts), rate] + [trunk] * bool(trunk), check=True)
    if delay_us:
        subprocess.run([LAB, "delay", str(delay_us)], check=True)


def down():
    subprocess.run([LAB, "down"])


def on_lab(hosts, ranks, folder):
    """The beginning of a command that runs on `ranks` ranks of each host, with caches in a folder.
    hosts: their number, or the numbers of each rack, "2 2"."""
    n = sum(int(h) for h in str(hosts).split())
    return [LAB, "mpirun", str(n), str(ranks), "env", f"XDG_CACHE_HOME={folder}"]


def lab_env(seconds):
    return dict(os.environ, LIMIT_S=str(seconds), FIRST="1")


def rows_of(command, seconds, who, is_whole):
    """The JSON lines of a program. Ends this program if the other one failed or did not print all
    lines."""
    run = subprocess.run(command, env=lab_env(seconds), cwd=TOP, stdout=subprocess.PIPE, text=True)
    lines = json_lines(run.stdout)
    if run.returncode or not is_whole(lines):
        sys.exit(f"{who}: {os.path.basename(command[0])} ended with status {run.returncode}:\n"
                 f"{run.stdout}")
    return lines


def choice_name(row):
    """The layout of a row as bench_layouts reads it."""
    return f"{row['layout']}@{row['overlap']}@{row['recompute']}@{row['micro']}"


def measured(text):
    """The rows of bench_layouts that have a time."""
    rows = [r for r in json_lines(text) if r.get("ms")]
    return rows or sys.exit(f"nothing was measured: {text}")


def alternate(ranks, layouts, options):
    """Rows of bench_layouts for ranks that are threads, with single steps of each layout in
    turns."""
    command = [build("bench_layouts"), "--ranks", str(ranks), "--layouts", ",".join(layouts),
               "--alternate", "--rounds", "1"] + options
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return measured(out.stdout)


def steps_of(log):
    """Milliseconds of each step that a run has logged so far."""
    if not os.path.exists(log):
        return []
    with open(log) as f:
        return [json.loads(line)["ms"] for line in f if line.startswith('{"step"')
                and line.endswith("}\n")]


def choose(command, log, steps, who, name_of):
    """Runs train_gpt --layout auto --json LOG. Returns the layout that it keeps for the rest of the
    run, as name_of reads it from a line of plan or refine; the median of its next steps after a
    first one; and the seconds of the calibration."""
    run = subprocess.Popen(command + ["--layout", "auto", "--steps", "100000", "--json", log],
                           env=lab_env(300), cwd=TOP, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    text, kept, calibrated, tried = "", None, 0, 0
    for line in run.stdout:
        text += line
        if "measured them in" in line:
            calibrated = float(line.split("measured them in ")[1].split()[0])
        elif line.startswith("plan  ") and ", micro " in line:
            kept = name_of(line.split(None, 1)[1])
        elif "steps on each" in line:
            found = re.search(r"refine: (\d+) layouts .*: (\d+) steps on each", line)
            tried = math.prod(int(n) for n in found.groups())
        elif line.startswith("refine: ") and line.endswith(", chosen\n"):
            kept = name_of(line.split("refine: ")[1])
        if len(steps_of(log)) > tried + steps:
            break
    subprocess.run([LAB, "stop"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.communicate()
    if not kept or len(steps_of(log)) <= tried + steps:
        sys.exit(f"{who}: train_gpt --layout auto ended:\n{text}")
    return kept, round(statistics.median(steps_of(log)[-steps:]), 3), calibrated
