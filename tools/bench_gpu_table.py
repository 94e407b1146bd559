"""The table of tools/bench_gpu.py: measurements and goals."""
import glob
import os
import statistics

import bench_page
from bench_gpu_checks import OUT_OF_TIME

PEAK = 989e12  # FLOP/s of dense bf16, from the data sheet of an H100 or H200 SXM
FORMULA = ("MFU = (6 N + 6 L C T) tokens/s / 989e12; N parameters, L layers, C channels, "
           "T positions of a sequence")
# must, aim
MFU = {"d12": (0.50, 0.55), "d24": (0.51, 0.57), "d36": (0.52, 0.575), "d48": (0.54, 0.60)}
OVER_TORCH = {"d12": (1.20, 1.30)}
# of cuDNN's, heads of 64, 1024 positions
ATTENTION = {"forward": (1.0, 1.1), "backward": (0.8, 1.05)}
# TFLOP/s, heads of 128, 2048 positions: what is published for cuDNN on an H200, and 1.1 times that
ATTENTION_128 = {"forward": (484, 532), "backward": (370, 407)}
MEMORY = (0.85, 0.93)  # of the rate of a copy
HIDDEN = (0.8, 0.9)  # of a transfer under a matmul
# the own kernel's rate, of cuBLASLt's best: a step's matmuls, gradients of weights, 8192^3
OWN, OWN_DW, OWN_SQUARE = (1.0, 1.03), (1.1, 1.1), (0.95, 1.0)
# of losses: other orders of sums, a hundred steps long; words of bf16
GAP_FP32, GAP_BF16, GAP_RANKS = 1e-3, 2e-2, 1e-4
GAP_OWN = 1e-2  # two hundred steps


def share(x):
    return f"{100 * x:.1f} %"


def ratio(x):
    return f"{x:.2f}x"


def goal(what, value, goals, show):
    """A row of the table: name, measured value, required value, aim, verdict."""
    if value is None:
        return [what, "-", show(goals[0]), show(goals[1]), "not measured"]
    word = "aim" if value >= goals[1] else "must" if value >= goals[0] else "MISSED"
    return [what, show(value), show(goals[0]), show(goals[1]), word]


def fact(what, text, good=None):
    return [what, text, "", "", "" if good is None else good if isinstance(good, str) else "yes"
            if good else "NO"]


def check_rows(data):
    """Rows of tests, sanitizer and probes."""
    tests, sanitizer, probes = (data.get(k) or {} for k in ("tests", "sanitizer", "probes"))
    rows = []
    if "passed" in tests:
        text = f"{tests['passed']} passed, {tests['failed']} failed"
        text += f", ended early: {', '.join(tests['ended'])}" if tests["ended"] else ""
        rows.append(fact("kernels, steps and programs against double precision and the CPU", text,
                         not tests["failed"] and not tests["ended"]))
    for kind in ("memcheck", "racecheck"):
        if r := sanitizer.get(kind):
            groups = f"{r['finished']} of {r['of']} groups"
            good = r["passed"] and not r["errors"] and not r["failed"]
            rows.append(fact(f"compute-sanitizer {kind}, {groups} of tests",
                             f"{r['errors']} errors, {r['failed']} failed, {r['passed']} of "
                             f"{r['tests']} passed",
                             f"no, {groups}" if good and r["finished"] < r["of"] else bool(good)))
    if "absent" in sanitizer:
        rows.append(fact("compute-sanitizer", sanitizer["absent"], "not measured"))
    if probes.get("probes"):
        odd = {"died": probes.get("died", []),
               "not as the tests have them": [x.split(":")[0] for x in probes["unexpected"]],
               "not as on the first device": probes.get("differ", [])}
        text = [f"{len(names)} {what}" + (f" ({', '.join(names)})" if names else "")
                for what, names in odd.items()]
        rows.append(fact("probes of instructions", f"{probes['probes']}, of them {', '.join(text)}",
                         not any(odd.values())))
    return rows


def curve_rows(r):
    """Rows of losses."""
    rows, right = [], True if r.get("tinyshakespeare") else "another text"
    if "gap_fp32" in r:
        for what, gap, most in (
                (f"losses of {len(r['cpu'])} steps on {r['text']} against the CPU, fp32",
                 r["gap_fp32"], GAP_FP32),
                ("the same in bf16, against the CPU in fp32", r["gap_bf16"], GAP_BF16)):
            rows.append(fact(what, f"{gap:.1e} apart at most", gap <= most and right))
    if "gap_own" in r:
        rows.append(fact(f"losses of {len(r['own'])} steps in bf16 by own matmuls against the "
                         "library's", f"{r['gap_own']:.1e} apart at most",
                         r["gap_own"] <= GAP_OWN))
        same = r["own"] == r["own_again"]
        rows.append(fact("the same by own matmuls again", "the same" if same else "others", same))
    for x in r.get("ranks", []):
        text = x.get("failed") or f"{x['gap']:.1e} apart at most"
        rows.append(fact(f"{x['ranks']} ranks on the GPU, {x['layout']}, overlap {x['overlap']}: "
                         f"losses against one rank", text,
                         "gap" in x and x["gap"] <= GAP_RANKS))
    return rows


def train_rows(r):
    """Rows of whole steps: MFU, and speed relative to torch.compile."""
    rows = []
    for x in r.get("rows", []):
        name = f"{x['model']}, B = {x['B']}"
        if "failed" in x:
            late = x["failed"].endswith(OUT_OF_TIME)
            rows.append(fact(name, x["failed"], "not measured" if late else False))
        if "first" not in x:
            continue
        first = x["first"]
        rows.append(goal(f"{name}: MFU ({first['tokens_per_s']:.0f} tokens/s)", first["mfu"],
                         MFU[x["model"]], share))
        peer, goals = x.get("torch") or {}, OVER_TORCH.get(x["model"])
        theirs, what, times = peer.get("tokens_per_s"), f"{name}: against torch.compile", None
        if "failed" in peer:
            rows.append(fact(f"{name}: torch.compile", peer["failed"]))
        if theirs:
            what += f" ({theirs:.0f})"
            times = x.get("again", first)["tokens_per_s"] / theirs
        if goals:
            rows.append(goal(what, times, goals, ratio))
        elif times:
            rows.append(fact(what, ratio(times)))
    return rows


def attention_rows(rows, theirs):
    """Rates of our attention, by the instructions of this device and of the generation before,
    beside PyTorch's. The goals are for the smallest shape."""
    mine = [x for x in rows if x["stage"] == "attention"]
    shapes = list(dict.fromkeys((x["D"], x["S"]) for x in mine))
    goals, facts = [], []
    for name, D, S in ((name, D, S) for name in ATTENTION for D, S in shapes):
        own = {x["way"]: x["tflops"] for x in mine if (x["name"], x["D"], x["S"]) == (name, D, S)}
        peers = {x["backend"]: x["tflops"] for x in theirs
                 if (x.get("name"), x["D"], x["S"]) == (name, D, S)}
        refused = [x["backend"] for x in theirs if "refused" in x and (x["D"], x["S"]) == (D, S)]
        what, best = f"attention {name}, heads of {D}, T = {S}", next(iter(own.values()))
        if (D, S) == min(shapes):
            goals.append(goal(f"{what}: against cuDNN's", best / peers["cudnn"] if "cudnn" in peers
                              else None, ATTENTION[name], ratio))
        if (D, S) == (128, 2048):
            goals.append(goal(f"{what}: TFLOP/s", best, ATTENTION_128[name], "{:.4g}".format))
        rates = [f"{who} {rate:.3g}" for who, rate in (own | peers).items()]
        facts.append(fact(f"{what}, TFLOP/s",
                          ", ".join(rates + [f"{who} refused" for who in refused])))
    return goals + facts


def of_a_step(matmuls, C):
    """The matmuls of a step. The library's rate for the head is the better of two: with the
    vocabulary as it is, and padded to a multiple of 64, as other programs run it."""
    rows = [r for r in matmuls if r["C"] == C and r["name"] not in ("square", "padded")]
    padded = {r["form"]: r["library_tflops"] for r in matmuls
              if r["C"] == C and r["name"] == "padded"}
    return [dict(r, library_tflops=max(r["library_tflops"], padded.get(r["form"], 0)))
            if r["name"] == "head" else r for r in rows]


TIMES = "cuBLASLt's best of 16 takes so many times as long"


def times_as_long(rows, mine, theirs):
    us = [sum(r["us"] * r["tflops"] / r[who] for r in rows) for who in (theirs, mine)]
    return us[0] / us[1]


def own_rows(matmuls):
    """Our own kernel beside the library's best. The goals are for the smallest model, C = 768."""
    out, own = [], [r for r in matmuls if r.get("sm90_tflops") and r["same_epilogue"]]
    for C in sorted({r["C"] for r in own}):
        step = of_a_step(own, C)
        for what, goals, mine in ((f"{len(step)} matmuls of a step", OWN, step),
                                  ("dw", OWN_DW, [r for r in step if r["form"] == "dw"
                                                  and r["name"] != "head"])):
            if mine:
                what = f"own kernel, {what}, C = {C}: {TIMES}"
                times = times_as_long(mine, "sm90_tflops", "library_tflops")
                out.append(goal(what, times, goals, ratio) if C == 768
                           else fact(what, ratio(times)))
    square = next((r for r in own if r["name"] == "square" and r["T"] == 8192), None)
    if square:
        out.append(goal("own kernel, square matmul of 8192: of cuBLASLt's best",
                        square["sm90_tflops"] / square["library_tflops"], OWN_SQUARE, ratio))
    return out


def matmul_rows(rows):
    """Rows of matmuls: the matmuls of a step relative to the library, a padded vocabulary, the own
    kernel, errors of the prediction."""
    out, matmuls = [], [r for r in rows if r["stage"] == "matmuls" and r["library_tflops"] > 0]
    for C in sorted({r["C"] for r in matmuls}):
        mine = [r for r in of_a_step(matmuls, C) if r["same_epilogue"]]
        if mine:
            out.append(fact(f"{len(mine)} matmuls of a step, C = {C}: {TIMES}",
                            ratio(times_as_long(mine, "tflops", "library_tflops"))))
        head, padded = ([r for r in matmuls if r["C"] == C and r["name"] == name]
                        for name in ("head", "padded"))
        if head and padded:
            us, us_padded = (sum(r["us"] for r in x) for x in (head, padded))
            out.append(fact(f"the head's matmuls, C = {C}: vocabulary {head[0]['N']} takes so "
                            f"many times as long as {padded[0]['N']}", ratio(us / us_padded)))
    out += own_rows(matmuls)
    errors = [abs(r["predicted_us"] * r["sm90_tflops"] / (r["us"] * r["tflops"]) - 1)
              for r in matmuls if r.get("sm90_tflops")]
    if errors:
        out.append(fact(f"time of {len(errors)} matmuls by the own kernel as predicted, "
                        "median error", share(statistics.median(errors))))
    square = next((r for r in rows if r["stage"] == "matmuls" and r["name"] == "square"), None)
    if square:
        out.append(fact(f"square matmul of {square['T']}", f"{square['tflops']:.4g} TFLOP/s, "
                        f"cuBLASLt's best {square['library_tflops']:.4g}"))
    return out


def fused_rows(rows):
    out = []
    for x in (x for x in rows if x["stage"] == "fused"):
        what = (f"one GPU, emulated link: matmul with {x['name']}, C = {x['C']}, "
                f"{x['ranks']} ranks")
        if x["transfer_us"]:
            out.append(goal(f"{what}: of the transfer hidden", x["hidden"], HIDDEN, share))
        else:
            out.append(fact(f"{what}: as long as the matmul alone", ratio(x["us"] / x["alone_us"])))
    return out


def kernel_rows(r):
    """Rows of attention, layers bound by memory, matmuls and fused matmuls."""
    rows = r.get("rows", [])
    peer = r.get("torch_attention") or {}
    out = attention_rows(rows, peer.get("rows") or [])
    if "rows" not in peer and peer:
        out.append(fact("attention of PyTorch", peer.get("absent") or peer.get("failed")))
    for x in rows:
        if x["stage"] == "memory" and x["name"] == "copy":
            out.append(fact("rate of a copy, bytes read and written", f"{x['gb_per_s']:.4g} GB/s"))
        elif x["stage"] == "memory":
            out.append(goal(f"{x['name']} ({x['formula']} bytes), share of the copy", x["share"],
                            MEMORY, share))
    return out + matmul_rows(rows) + fused_rows(rows)


def train_line(x, turn):
    text, peer = f"{x['model']:4} B={x['B']:<3}", x.get("torch") or {}
    if turn in x:
        text += (f" {x[turn]['ms']:8.1f} ms  {x[turn]['tokens_per_s']:9.0f} tokens/s"
                 f"  MFU {share(x[turn]['mfu'])}")
    if "tokens_per_s" in peer:
        text += f"   torch {peer['tokens_per_s']:.0f}"
    elif peer:
        text += f"   torch: {peer.get('absent') or peer.get('failed')}"
    return text + (f"   {x['failed']}" if "failed" in x else "")


def load(folder, prefix):
    data = {}
    for path in glob.glob(os.path.join(folder, f"{glob.escape(prefix)}-*.json")):
        data.update(bench_page.load(path))
    return data


def lines(data):
    rows = check_rows(data)
    for key, make in (("curves", curve_rows), ("train", train_rows), ("kernels", kernel_rows)):
        if data.get(key):
            rows += make(data[key])
    commit = (data.get("facts") or {}).get("commit")
    for stage, value in data.items():
        if isinstance(value, dict) and "broke" in value:
            rows.append(fact(f"stage {stage}", value["broke"], False))
        elif isinstance(value, dict) and value.get("commit") != commit:
            rows.append(fact(f"stage {stage}",
                             f"measured at commit {value.get('commit')}, {value.get('date')}"))
    if (data.get("facts") or {}).get("rehearsal"):  # goals are for a GPU
        rows = [r[:4] + ["rehearsed" if r[2] and r[1] != "-" else r[4]] for r in rows]
    return rows


def table(folder, prefix):
    """The table as text for a terminal."""
    rows = [["", "measured", "must", "aim", ""]] + lines(load(folder, prefix))
    wide = [min(70, max(len(r[i]) for r in rows)) for i in range(5)]
    out = [FORMULA] + ["  ".join(c.ljust(w) for c, w in zip(r, wide)).rstrip() for r in rows]
    return "\n".join(out)


def wrong(folder, prefix, stages):
    """Rows of these stages that are wrong although they must be right."""
    data = {name: value for name, value in load(folder, prefix).items() if name in stages}
    return [r for r in lines(data) if r[4] == "NO"]


def newest(folder):
    """The prefix of the latest measurement; rehearsals do not count."""
    dates = {}
    for path in glob.glob(os.path.join(folder, "*-facts.json")):
        facts = bench_page.load(path).get("facts", {})
        if not facts.get("rehearsal", True):
            dates[os.path.basename(path)[:-len("-facts.json")]] = facts["date"]
    return max(dates, key=dates.get) if dates else None


def page(folder):
    """The table as Markdown."""
    prefix = newest(folder)
    if not prefix:
        return "No GPU has been measured yet.\n"
    data = load(folder, prefix)
    f = data["facts"]
    torch = next((x["torch"]["version"] for x in data.get("train", {}).get("rows", [])
                  if "version" in x.get("torch", {})), f["torch"] or "absent")
    note = (f"{f['gpu']['name']}, driver {f['gpu']['driver_version']}, {f['nvcc']}, PyTorch "
            f"{torch}; {f['date'][:10]}, commit {f['commit']}, `{f['command']}`, "
            f"bench/results/{prefix}-*.json. {FORMULA}. "
            f"torch.compile: bf16 autocast, cuDNN's attention, fused AdamW; "
            "d12 compiled whole, the others block by block.")
    return bench_page.markdown(" | measured | must | aim | ",
                               [[cell.replace("|", "/") for cell in r] for r in lines(data)], note)
