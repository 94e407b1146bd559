#!/usr/bin/env python3
"""How rarely may replicas average? Measures the loss against the bytes sent. Writes
bench/results/outer.json and outer.svg.

    python3 tools/study_outer.py                   8 runs of 512 steps, a few minutes on two cores
    python3 tools/study_outer.py --steps 2048      a closer look
    python3 tools/study_outer.py --draw            the picture and the table again, from outer.json

Four replicas (threads of one process, --layout d4) train one small GPT on the King James Bible
(Debian's package bible-kjv) with the same data, the same seed and the same inner optimizer, AdamW.
They differ in how often they take outer steps, and in what an outer step does
(parallel/step/outer.h):

    gradients     H = 1       the gradients are averaged in every step
    averaging     H > 1       --sync-every H
    DiLoCo        H > 1       --sync-every H --outer-lr 0.7 --outer-momentum 0.9

Bytes are those that rank 0 received in its steps, as the run itself counts them ("received" of
--json). Theory: 2 (D-1)/D of the fp32 parameters for each outer step, so 1/H of the bytes of H = 1;
fragments that are not due are averaged once more after the last step, which is therefore left out
of the largest one. The loss is that of 512 sequences of the validation text, for the model on which
the replicas last agreed. Only the standard library is needed.
"""
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

import bench_page
from bench_page import TOP

REPLICAS = 4
MODEL = "layers=2,heads=4,channels=128,seq=64,vocab=1024"
DILOCO = ["--outer-lr", "0.7", "--outer-momentum", "0.9"]
# name, H, fragments, further options
SETTINGS = [("gradients", 1, 1, [])]
SETTINGS += [("averaging", h, 1, []) for h in (4, 16, 64)]
SETTINGS += [("DiLoCo", h, 1, DILOCO) for h in (4, 16, 64)]
SETTINGS += [("DiLoCo, 4 fragments", 16, 4, DILOCO)]


def say(command, **more):
    return subprocess.run(command, check=True, text=True, cwd=TOP, **more)


def make_data(tmp):
    """Writes the text, a tokenizer and token shards to a folder."""
    bible = shutil.which("bible", path=os.environ.get("PATH", "") + ":/usr/games")
    if not bible:
        raise SystemExit("study_outer: the text is that of the package bible-kjv: apt-get "
                         "install bible-kjv")
    text = say([bible, "-f", "Gen1:1-Rev22:21"], stdout=subprocess.PIPE,
               stderr=subprocess.DEVNULL).stdout
    with open(os.path.join(tmp, "text"), "w") as f:
        f.writelines(line.split(" ", 1)[1] + "\n" for line in text.splitlines() if " " in line)
    say(["build/tokenize", "train", "--text", f"{tmp}/text", "--vocab", "1024", "--out",
         f"{tmp}/tokenizer"])
    say(["build/tokenize", "encode", "--tokenizer", f"{tmp}/tokenizer", "--text", f"{tmp}/text",
         "--out", f"{tmp}/tokens", "--val-fraction", "0.05"])


def train(tmp, setting, args):
    """Trains one setting. Returns its losses by bytes received."""
    name, every, fragments, more = setting
    log = os.path.join(tmp, "log.jsonl")
    command = ["build/train_gpt", "--train", "TMP/tokens_train.bin", "--val", "TMP/tokens_val.bin",
               "--model", MODEL,
               "--ranks", str(REPLICAS), "--layout", f"d{REPLICAS}", "--micro", "8", "--steps",
               str(args.steps),
               "--lr", "3e-3", "--min-lr", "3e-4", "--warmup", str(args.steps // 10), "--seed",
               str(args.seed),
               "--eval-every", str(max(args.steps // 8, 1)), "--eval-batches", "64", "--timeout",
               "0", "--json", "TMP/log.jsonl"]
    command += ["--sync-every", str(every), "--fragments", str(fragments)] + more
    real = [word.replace("TMP", tmp) for word in command]
    say(shlex.split(args.prefix) + real, stdout=subprocess.DEVNULL)
    received, losses, points, largest = 0, [], [], 0
    with open(log) as f:
        records = [json.loads(line) for line in f]
    for r in records:
        if "loss" in r:
            received += r["received"]
            largest = max(largest, r["received"] if r["step"] < args.steps else 0)
            losses.append(r["loss"])
        elif "val_loss" in r:
            points.append({"step": r["step"], "received": received, "val_loss": r["val_loss"]})
    parameters = records[0]["run"]["parameters"]
    outer_steps = math.ceil(args.steps / every)
    result = {"name": name, "every": every, "fragments": fragments, "command": shlex.join(command),
              "parameters": parameters, "val_loss": points[-1]["val_loss"], "received": received,
              "theory": 2 * (REPLICAS - 1) / REPLICAS * 4 * parameters * outer_steps,
              "largest_step": largest,
              "train_loss": sum(losses[-16:]) / len(losses[-16:]), "points": points}
    print(f"  H = {every:2} {name:20} val loss {result['val_loss']:.4f}, {received / 1e6:9.2f} MB "
          f"(theory {result['theory'] / 1e6:.2f})", flush=True)
    return result


# ---- the picture

COLOURS = {"gradients": {1: "#222222"},  # by H: the longer the local phase, the lighter
           "averaging": {4: "#143f78", 16: "#2f74cc", 64: "#6c9be0"},
           "DiLoCo": {4: "#7d3408", 16: "#cc5f1f", 64: "#e08a4e"},
           "DiLoCo, 4 fragments": {16: "#8a8a2a"}}


def draw(study, path):
    """Validation loss by bytes received so far, on a logarithmic axis."""
    points = [p for r in study["runs"] for p in r["points"] if p["received"] > 0]
    x0 = math.floor(math.log10(min(p["received"] for p in points)) * 4) / 4
    x1 = math.log10(max(p["received"] for p in points)) + 0.1
    low = min(p["val_loss"] for p in points)
    y0, y1 = math.floor(low * 10 - 0.5) / 10, min(max(p["val_loss"] for p in points), low + 2)

    def place(p):
        return (math.log10(p["received"]) - x0) / (x1 - x0), (p["val_loss"] - y0) / (y1 - y0)

    lines = [(f"{r['name']}, H = {r['every']}", COLOURS[r["name"]][r["every"]],
              [([place(p) for p in r["points"] if p["received"] > 0 and p["val_loss"] <= y1],
                ' stroke-width="1.8"')]) for r in study["runs"]]
    powers = range(math.ceil(x0), math.floor(x1) + 1)
    step = 0.2 if y1 - y0 > 1 else 0.1
    losses = range(math.ceil(y0 / step - 1e-9), math.floor(y1 / step + 1e-9) + 1)
    bench_page.chart(path, 420, ["received by a rank so far (logarithmic)"]
                     + [((e - x0) / (x1 - x0), f"{10 ** (e - 6):,} MB") for e in powers],
                     [((i * step - y0) / (y1 - y0), f"{i * step:.1f}") for i in losses],
                     f"validation loss; {REPLICAS} replicas, {study['steps']} steps", lines)


def table(study):
    base = study["runs"][0]
    return bench_page.markdown(
        "H | what an outer step does | received, MB | of H = 1 | theory | largest step, MB | "
        "validation loss | against H = 1",
        [[r["every"], r["name"], f"{r['received'] / 1e6:.2f}",
          f"{r['received'] / base['received']:.4f}", f"{1 / r['every']:.4f}",
          f"{r['largest_step'] / 1e6:.2f}", f"{r['val_loss']:.4f}",
          f"{r['val_loss'] - base['val_loss']:+.4f}"] for r in study["runs"]])


def main():
    a = bench_page.parser(__doc__)
    a.add_argument("--steps", type=int, default=512, help="steps of each run (default 512)")
    a.add_argument("--seed", type=int, default=1337, help="seed of the runs (default 1337)")
    a.add_argument("--prefix", default="", help="command in front of each run, such as nice")
    a.add_argument("--out", default=os.path.join(TOP, "bench/results/outer.json"),
                   help="file of the results (default bench/results/outer.json)")
    a.add_argument("--draw", action="store_true",
                   help="measure nothing: draw the picture and print the table of --out")
    args = a.parse_args()
    if args.draw:
        study = bench_page.load(args.out)
    else:
        say(["make", "-s", "all"])
        study = bench_page.stamp(shlex.join(["python3", "tools/study_outer.py", "--steps",
                                             str(args.steps), "--seed", str(args.seed)]))
        study |= {"text": "King James Bible (bible-kjv)", "replicas": REPLICAS, "model": MODEL,
                  "steps": args.steps}
        with tempfile.TemporaryDirectory() as tmp:
            make_data(tmp)
            study["runs"] = [train(tmp, s, args) for s in SETTINGS]
        bench_page.save(args.out, None, study)
    draw(study, os.path.splitext(args.out)[0] + ".svg")
    print(table(study), end="")


if __name__ == "__main__":
    sys.exit(main())
