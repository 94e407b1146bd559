#!/usr/bin/env python3
"""Build, check and time everything on one GPU, unattended, in two parts of under nine minutes each;
results as files, a table with goals.

    make bench-gpu                                    both parts, into bench/results/
    python3 tools/bench_gpu.py --out FOLDER           the same into another folder
    python3 tools/bench_gpu.py --stages first         a part alone: first (facts build probes tests
                                                      kernels) or second (facts train curves
                                                      sanitizer); or stages: tests,train
    python3 tools/bench_gpu.py --no-build             with programs that were built before
                                                      (build/cuda, or in --programs FOLDER)
    python3 tools/bench_gpu.py --rehearse             every stage at tiny sizes on the emulated GPU
                                                      of the tests: its times mean nothing, but all
                                                      paths are the real ones
    python3 tools/bench_gpu.py --page docs/gpu.md     measures nothing: puts the table of --out into
                                                      a page

Each stage has a minimum time, and gets the time that earlier stages have left. A stage that fails
or runs out of time is recorded as such, and the others go on. The results of a stage are in
GPU-STAGE.json (GPU is h100, h200, ...), which is rewritten after each group of tests, kind of
kernels and model; log.txt has all output. The status is 1 if a stage broke, or if a test, a probe,
the sanitizer or a loss is wrong; a speed below its goal does not count. Peers are measured in the
same run: torch.compile with cuDNN's attention and fused AdamW, torch's attention by cuDNN and by
flash, cuBLASLt's best of 16 algorithms. Without PyTorch its peers are left out, with a line. Only
the standard library is needed. The text for the losses is tinyshakespeare: --text FILE, else
tinyshakespeare.txt in TEST_DATA_DIR or ../shared/data; without it the sources of this program, and
the table says so. The results of the probes are written to tests/golden/sm90.txt if that
file does not exist; later runs are compared with it.

A machine without jansson and a compiler can run the programs of another machine:

    make gpu-programs            for H100 and H200 alone, linked with a static jansson, without MPI,
                                 stripped: build-sm90/programs/, under 64 MiB, which it checks
    python3 tools/bench_gpu.py --no-build --programs FOLDER --out RESULTS --stages first
    python3 tools/bench_gpu.py --no-build --programs FOLDER --out RESULTS --stages second
"""
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import bench_gpu_table
import bench_page
from bench_gpu_checks import Failed, ending, last_line, sanitized, sanitizer, tests
from bench_page import TOP

GOLDEN = os.path.join(TOP, "tests", "golden", "sm90.txt")
SM90 = "-gencode arch=compute_90a,code=sm_90a"
# name, model, sequences of a micro-batch, steps of half a million tokens; --model's d12 .. d48 are
# GPT-2 124M .. 1558M
MODELS = [("d12", "d12", 32, 9), ("d12", "d12", 64, 9), ("d24", "d24", 32, 6),
          ("d36", "d36", 16, 5), ("d48", "d48", 16, 4)]
TINY = [("d12", "layers=1,heads=2,channels=32,seq=16,vocab=257", 2, 3)]
TOKENS = 1 << 19  # of a step
SIZES = {"d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}
# Ranks as threads that share the GPU, each against one rank: ranks, --layout, --overlap
RANKS = [(2, "x2", "none"), (2, "x2+sp", "bulk+ring"), (2, "d2+zero2", "bulk"),
         (4, "x2.y2", "bulk+halves"), (4, "d2.x2", "bulk"), (4, "z2.x2+sp", "bulk+chunk=2"),
         (2, "x2+sp", "bulk+fused"), (4, "x2.y2+sp", "fused")]


class Run:
    """Folders of programs and results, the time left, and the log."""

    def __init__(self, args):
        self.args, self.rehearse, self.start = args, args.rehearse, time.monotonic()
        self.deadline, self.stamp = self.start + args.seconds, bench_page.stamp(args.command)
        self.stage_end, self.prefix = self.deadline, "gpu"
        self.build = os.path.abspath(
            args.programs or os.path.join(TOP, "build" if args.rehearse else "build/cuda"))
        os.makedirs(args.out, exist_ok=True)
        self.log = open(os.path.join(args.out, "log.txt"), "w", buffering=1)
        self.libraries = []
        self.scratch = tempfile.mkdtemp(prefix="bench_gpu_")

    def program(self, name):
        path = os.path.join(self.build,
                            name + ("_emu" if self.rehearse and name != "run_tests" else ""))
        if not os.access(path, os.X_OK):
            raise Failed(f"{path} is missing")
        return path

    def say(self, text):
        print(text, flush=True)
        self.log.write(text + "\n")

    def file_of(self, stage):
        return os.path.join(self.args.out, f"{self.prefix}-{FILES[stage]}.json")

    def save(self, stage, value):
        """Writes the results of a stage so far."""
        bench_page.save(self.file_of(stage), stage, value)

    def saved(self, stage):
        """The results of a stage from an earlier run."""
        try:
            return bench_page.load(self.file_of(stage)).get(stage, {})
        except (OSError, ValueError):
            return {}

    def left(self):
        return max(1.0, min(self.stage_end, self.deadline) - time.monotonic())

    def shell(self, command, limit=None, check=True):
        """Runs a command, at the latest until the end of the stage. Returns its status and
        output."""
        limit = min(limit or 1e9, self.left())
        words = command if isinstance(command, list) else ["bash", "-c", command]
        start = time.monotonic()
        env = dict(os.environ)
        if self.libraries and any(w.startswith(self.build) for w in words):
            env["LD_LIBRARY_PATH"] = ":".join(self.libraries
                                              + [x for x in [env.get("LD_LIBRARY_PATH")] if x])
        try:
            p = subprocess.Popen(words, cwd=TOP, env=env, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace",
                                 start_new_session=True)
            out, _ = p.communicate(timeout=limit)
            status = p.returncode
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            out, status = p.communicate()[0], 124
        except OSError as e:  # 127, as from a shell
            out, status = str(e), 127
        name = command if isinstance(command, str) else shlex.join(command)
        self.log.write(f"\n$ {name}\n{out}[status {status}, {time.monotonic() - start:.1f} s]\n")
        if check and status:
            raise Failed(f"{name[:200]}: {ending(status, out)}")
        return status, out


def answer(run, command):
    """The output of a command; None: it failed."""
    status, out = run.shell(command, limit=30, check=False)
    return out.strip() if status == 0 else None


# ---- facts, build, correctness

def facts(run):
    """Stage: the device, its driver and the libraries."""
    r = dict(run.stamp, rehearsal=run.rehearse)
    query = ("name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,clocks.sm,"
             "temperature.gpu,ecc.mode.current")
    line = answer(run, f"nvidia-smi --query-gpu={query} --format=csv,noheader")
    r["gpu"] = dict(zip(query.split(","),
                        [x.strip() for x in line.splitlines()[0].split(",")])) if line else None
    nvcc = answer(run, "nvcc --version || /usr/local/cuda/bin/nvcc --version")
    r["nvcc"] = next((x for x in nvcc.splitlines() if "release" in x), None) if nvcc else None
    r["sanitizer"] = bool(sanitizer(run))
    r["libraries"] = run.libraries = libraries(run)
    r["gcc"] = (answer(run, "gcc --version") or "?").splitlines()[0]
    if run.rehearse:
        r["gpu"] = {"name": "emulated", "driver_version": "none"}
    elif not r["gpu"]:
        r["broke"] = "nvidia-smi names no GPU"
    find_torch(run, r)
    run.prefix = gpu_name(run, r)
    return r


def find_torch(run, r):
    """The version of PyTorch. PyTorch is not imported, which on a cold machine takes longer than
    all other facts. If the version is unknown PyTorch is assumed to be installed, so that peers
    that do not answer are noticed."""
    ask = ("import importlib.metadata as m, importlib.util as u; "
           "print(next((d.version for d in m.distributions(name='torch')), 'of no version') if "
           "u.find_spec('torch') else 'none')")
    status, out = run.shell([run.args.python, "-c", ask], check=False)
    said = last_line(out) if status == 0 else "not known"
    r["torch"] = None if said == "none" else said
    if status:
        r.setdefault("broke", f"{run.args.python} does not say whether it has PyTorch: status "
                     f"{status}: {last_line(out)}")


def libraries(run):
    """Folders of cuBLASLt and NCCL that the loader does not search by itself: those of --libraries,
    of PyTorch, and of the toolkit."""
    ask = ("import glob, sys; "
           "print('\\n'.join(p for s in sys.path for p in glob.glob(s + '/nvidia/*/lib')))")
    folders = [p for p in run.args.libraries.split(":") if p]
    folders += (answer(run, [run.args.python, "-c", ask]) or "").splitlines()
    folders += [p + "/lib64" for p in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if p]
    return [p for p in folders if glob.glob(p + "/libcublasLt.so*")
            or glob.glob(p + "/libnccl.so*")]


def gpu_name(run, r):
    if run.rehearse:
        return "rehearsal"
    m = re.search(r"[AHBL]\d+|RTX.*\d+", r["gpu"]["name"]) if r["gpu"] else None
    return m.group(0).lower().replace(" ", "") if m else "gpu"


def arch(run):
    """Flags of nvcc for this device only; None: those of the Makefile, which every device runs."""
    cap = answer(run, "nvidia-smi --query-gpu=compute_cap --format=csv,noheader")
    n = cap.splitlines()[0].strip().replace(".", "") if cap else ""
    if n == "90":
        return SM90
    known = answer(run, "nvcc --list-gpu-arch || /usr/local/cuda/bin/nvcc --list-gpu-arch") or ""
    flags = f"-gencode 'arch=compute_{n},code=[sm_{n},compute_{n}]'"
    return flags if f"compute_{n}" in known.split() else None


def build(run):
    """Stage: builds the programs for this kind of device only."""
    emulated = ["train_gpt_emu", "bench_gpu_emu", "run_tests"]
    names = emulated if run.rehearse else ["train_gpt", "bench_gpu", "run_tests", "probes"]
    start = time.monotonic()
    if run.args.no_build:
        return {"built": False,
                "missing": [n for n in names if not os.access(os.path.join(run.build, n), os.X_OK)]}
    flags = None if run.rehearse else arch(run)
    command = ["make", "-s", f"-j{len(os.sched_getaffinity(0))}"]
    command += [f"NVCC_FLAGS={flags}"] if flags else []
    command += [os.path.relpath(os.path.join(run.build, n), TOP) for n in names]
    run.shell(command)
    return {"built": True, "seconds": time.monotonic() - start, "command": shlex.join(command)}


def probes(run):
    """Stage: runs the probes of the instructions of capability 9.0, and compares the results with
    those that the emulator's tests expect."""
    if run.rehearse:
        _, out = run.shell([run.program("run_tests"), "cuda_sm90_instructions_do_what_is_said"])
        return {"probes": 0, "emulated": last_line(out)}
    status, out = run.shell([run.program("probes")], check=False)
    lines = [x for x in out.splitlines() if re.fullmatch(r"\S+ ([0-9a-f]{16}|died)", x)]
    if not lines:
        raise Failed(last_line(out))
    with open(os.path.join(run.args.out, "sm90.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    r = {"probes": len(lines), "status": status,
         "died": [x.split(":")[0] for x in out.splitlines() if re.match(r"\S+: died, ", x)],
         "unexpected": [x for x in out.splitlines() if "not what the tests expect" in x]}
    compare_with_golden(lines, r)
    return r


def compare_with_golden(lines, r):
    """Writes the results of probes that tests/golden/sm90.txt does not have yet; compares the
    others with it."""
    given, known = dict(x.split() for x in lines), []
    if os.path.exists(GOLDEN):
        with open(GOLDEN) as f:
            known = f.read().splitlines()
    names = {x.split()[0] for x in known}
    r["differ"] = [x.split()[0] for x in known if given.get(x.split()[0]) != x.split()[1]]
    if r["differ"]:
        r["broke"] = f"not what {os.path.relpath(GOLDEN, TOP)} says: {r['differ'][0]}"
        return
    try:
        with open(GOLDEN, "w") as f:
            f.write("\n".join(known + [x for x in lines if x.split()[0] not in names]) + "\n")
    except OSError as e:  # the tree cannot be written to: the results are in --out
        r["not_written"] = str(e)


# ---- speed

class Watch:
    """Records clock, power and temperature while a command runs."""

    def __init__(self, run):
        self.run, self.path = run, os.path.join(run.scratch, "watch.csv")

    def __enter__(self):
        self.p = None
        if shutil.which("nvidia-smi") and not self.run.rehearse:
            query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
            with open(self.path, "w") as f:
                self.p = subprocess.Popen(["nvidia-smi", query, "--format=csv,noheader,nounits",
                                           "-lms", "200"], stdout=f, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        if self.p:
            self.p.terminate()
            self.p.wait()

    def seen(self):
        """Medians of clock and power, and the highest temperature, without the first quarter of the
        samples."""
        if not self.p:
            return None
        rows = []
        with open(self.path) as f:
            for line in f:
                try:
                    rows.append([float(x) for x in line.split(",")])
                except ValueError:
                    pass
        busy = [r for r in rows if len(r) == 3][len(rows) // 4:]
        return {"mhz": statistics.median(r[0] for r in busy),
                "watt": statistics.median(r[1] for r in busy),
                "celsius": max(r[2] for r in busy)} if busy else None


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return bench_page.json_lines(f.read())


def kernels(run):
    """Stage: layers, attention, matmuls and fused matmuls, saved kind by kind; torch's attention in
    the same run."""
    r = {"rows": [], "watch": {}}
    for what in ("memory", "attention", "matmuls", "fused"):
        path = os.path.join(run.scratch, f"{what}.jsonl")
        command = [run.program("bench_gpu"), "--what", what, "--json", path]
        if run.rehearse:
            tokens = 512 if what == "fused" else 16
            command += shlex.split(f"--tokens {tokens} --seq 8 --channels 64 --vocab 40 "
                                   "--parameters 100 --rounds 1 --round-ms 0 --sets 1")
        with Watch(run) as watch:
            status, out = run.shell(command, check=False)
        r["rows"] += lines_of(path)
        r["watch"][what] = watch.seen()
        run.say(out.rstrip())
        if status:  # finished rows are kept
            r.setdefault("broke", f"{what}: {ending(status, out)}")
        if what == "attention":
            r["torch_attention"] = torch_attention(run)
        run.save("kernels", r)
    if "failed" in r["torch_attention"]:
        r.setdefault("broke", f"attention of PyTorch: {r['torch_attention']['failed']}")
    return r


def bench_torch(run):
    return [run.args.python, os.path.join(TOP, "tools", "bench_torch.py"), "--device",
            "cpu" if run.rehearse else "cuda"]


def torch_says(run, command, limit, take):
    """Runs a script of PyTorch. Returns take(JSON of its last line), or the error with which it
    ended."""
    if not run.torch:
        return {"absent": "no PyTorch"}
    status, out = run.shell(command, limit=limit, check=False)
    try:
        return take(json.loads(out.strip().splitlines()[-1]))
    except (ValueError, IndexError, KeyError):
        return {"failed": ending(status, out)}


def torch_attention(run):
    size = "--batch 1 --seq 8 --steps 2" if run.rehearse else "--batch 32 --seq 1024 --steps 30"
    return torch_says(run, bench_torch(run) + ["--attention"] + size.split(), 60,
                      lambda rows: {"rows": rows})


def trained(run, model, micro, steps, name, extra=(), backend="cuda", dtype="bf16", data=None):
    """The records of a run of train_gpt: its head and its steps."""
    path = os.path.join(run.scratch, name + ".jsonl")
    if os.path.exists(path):
        os.remove(path)
    status, out = run.shell([run.program("train_gpt"), "--backend", backend, "--dtype", dtype,
                             "--train", data or run.tokens, "--model", model, "--micro",
                             str(micro), "--steps", str(steps), "--eval-every", "0", "--ledger",
                             "none", "--json", path, *extra], check=False)
    rows = lines_of(path)
    done = [x for x in rows if "step" in x and "loss" in x]
    if status or len(done) < steps:
        raise Failed(f"{name}: {ending(status, out)}")
    return next(x["run"] for x in rows if "run" in x), done


def speed_of(head, steps, model_seq):
    """Tokens per second: the mean of the last two thirds of the steps. Not the median, since a host
    that runs ahead of the device measures single steps wrongly."""
    late = steps[len(steps) // 3:]
    ms = sum(x["ms"] for x in late) / len(late)
    L, C = (int(re.search(rf"\b{k}=(\d+)", head["model"]).group(1)) for k in ("layers", "channels"))
    flops = 6 * head["parameters"] + 6 * L * C * model_seq
    tokens = head["tokens_per_step"]
    return {"ms": ms, "median_ms": statistics.median(x["ms"] for x in late),
            "tokens_per_s": 1e3 * tokens / ms, "flops_per_token": flops,
            "parameters": head["parameters"],
            "mfu": flops * 1e3 * tokens / ms / bench_gpu_table.PEAK, "loss": steps[-1]["loss"]}


def train(run):
    """Stage: whole steps of all models, then those of torch.compile. The smallest model is measured
    again right after torch's, for their ratio."""
    models, seq, rows = (TINY, 16, []) if run.rehearse else (MODELS, 1024, [])
    only = [x for x in run.args.models.split(",") if x]
    models = [m for m in models if not only or m[0] in only or f"{m[0]}-{m[2]}" in only]
    if not models:
        raise Failed(f"--models {run.args.models}: none of these")
    kept = [x for x in run.saved("train").get("rows", []) if only
            and not any((m[0], m[2]) == (x["model"], x["B"]) for m in models)]
    # tokens from the whole vocabulary: a text of bytes would use only a hundred embedding rows
    data = os.path.join(run.scratch, "random_train.bin")
    bench_page.write_tokens(data, *((257, 20000) if run.rehearse else (50257, 1 << 20)))
    for turn in ("first", "again"):
        for i, (name, model, micro, steps) in enumerate(models):
            batch = 2 * micro * seq if run.rehearse else TOKENS
            if turn == "first":
                rows.append({"model": name, "B": micro, "commit": run.stamp["commit"]})
            else:
                rows[i]["torch"] = torch_step(run, name, micro, seq, batch, steps)
            try:
                if turn == "first" or (name == "d12" and "ms" in rows[i]["torch"]) or run.rehearse:
                    with Watch(run) as watch:
                        head, done = trained(run, model, micro, steps, f"{name}-{micro}",
                                             ["--tune", "--batch", str(batch)], data=data)
                    rows[i][turn] = dict(speed_of(head, done, seq), watch=watch.seen())
            except Failed as e:
                rows[i]["failed"] = str(e)
            run.say(bench_gpu_table.train_line(rows[i], turn))
            run.save("train", {"formula": bench_gpu_table.FORMULA, "rows": in_order(kept + rows)})
    silent = [f"torch.compile of {x['model']}, B = {x['B']}: {x['torch']['failed']}" for x in rows
              if "failed" in x["torch"]]
    return {"formula": bench_gpu_table.FORMULA,
            "rows": in_order(kept + rows)} | ({"broke": silent[0]} if silent else {})


def in_order(rows):
    """Rows in the order of MODELS; other rows of an earlier run come last."""
    order = {(m[0], m[2]): i for i, m in enumerate(TINY + MODELS)}
    return sorted(rows, key=lambda x: order.get((x["model"], x["B"]), len(order)))


def torch_command(run, name, micro, seq, batch, steps):
    layers, heads, channels = (1, 2, 32) if run.rehearse else SIZES[name]
    words = (f"--dtype bf16 --layers {layers} --heads {heads} --channels {channels} "
             f"--batch {micro} --seq {seq} --micro-steps {batch // (micro * seq)} --warmup 1 "
             f"--steps {steps} ")
    words += ("--mode eager --vocab 257" if run.rehearse
              else "--mode compile --vocab 50304 --sdpa cudnn")
    # compiling a deep model takes minutes, so one block is compiled and used for all layers
    if not run.rehearse and name != "d12":
        words += " --blocks"
    return bench_torch(run) + words.split()


def torch_step(run, name, micro, seq, batch, steps):
    def take(r):
        ms = statistics.median(r["ms"])
        return {"ms": ms, "tokens_per_s": 1e3 * batch / ms,
                **{k: r[k] for k in ("warmup_s", "sdpa", "compiled", "loss")},
                "version": f"{r['torch']}, CUDA {r['cuda']}, cuDNN {r['cudnn']}"}
    return torch_says(run, torch_command(run, name, micro, seq, batch, max(3, steps // 2)), 120,
                      take)


def warm_torch(run):
    """Lets torch.compile fill its cache on disk. This runs only while this program is built, since
    it uses the memory and time of the device."""
    if not run.torch or run.rehearse or "train" not in run.args.stages or run.args.no_build:
        return None
    commands = [shlex.join(torch_command(run, n, b, 1024, b * 1024, 1)) for n, _, b, _ in MODELS]
    return subprocess.Popen(["bash", "-c", "; ".join(commands)], cwd=TOP,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)


# ---- losses

def loss_gap(a, b):
    return max(abs(x - y) / y for x, y in zip(a, b))


MORE = ["--lr", "1e-3", "--warmup", "10", "--schedule", "constant", "--seed", "1"]


def curves(run):
    """Stage: losses on text. Own matmuls against the library's, twice; ranks as threads on one GPU
    against one rank; the GPU against the CPU backend in fp32, and bf16. The slow runs, which could
    take the time of the others, come last."""
    model = ("layers=1,heads=2,channels=16,seq=8,vocab=257" if run.rehearse
             else "layers=6,heads=6,channels=384,seq=256,vocab=257")
    r = {"text": run.text, "tinyshakespeare": run.tinyshakespeare, "model": model,
         "sequences": 2 if run.rehearse else 16}
    for part in (curves_of_gpu, curves_of_ranks, curve_of_cpu):
        try:
            part(run, r)
        except Failed as e:
            r.setdefault("broke", str(e))
        run.save("curves", r)
    return r


def curve(run, r, name, steps=100, more=(), **how):
    head, done = trained(run, r["model"], r["sequences"], 3 if run.rehearse else steps, name,
                         [*MORE, *more], **how)
    return head, [x["loss"] for x in done]


def curves_of_gpu(run, r):
    head, r["fp32"] = curve(run, r, "curve-fp32", dtype="fp32")
    _, r["bf16"] = curve(run, r, "curve-bf16", 200)
    for name in ("own", "own_again"):
        _, r[name] = curve(run, r, f"curve-{name}", 200, ["--libraries", "none"])
    r["gap_own"] = loss_gap(r["own"], r["bf16"])
    r["device"] = head.get("device")


def curve_of_cpu(run, r):
    _, r["cpu"] = curve(run, r, "curve-cpu", 50, backend="cpu", dtype="fp32")
    r.update({f"gap_{name}": loss_gap(r[name], r["cpu"]) for name in ("fp32", "bf16") if name in r})


def curves_of_ranks(run, r):
    """Losses of ranks that share the GPU, compared with one rank, in fp32."""
    seq, steps, r["ranks"] = (8, 2, []) if run.rehearse else (256, 20, [])
    size = "layers=1,heads=4,channels=16" if run.rehearse else "layers=4,heads=4,channels=256"
    model = f"{size},seq={seq},vocab=257"
    batch = MORE + ["--batch", str(4 * seq)]
    _, one = trained(run, model, 4, steps, "ranks-1", batch, dtype="fp32")
    one = [x["loss"] for x in one]
    for n, layout, overlap in RANKS:
        row = {"ranks": n, "layout": layout, "overlap": overlap}
        along = 2 if layout[0] in "dz" else 1  # coordinates that divide the sequences
        words = batch + ["--ranks", str(n), "--layout", layout, "--overlap", overlap]
        try:
            _, done = trained(run, model, 4 // along, steps, f"ranks-{n}-{layout}", words,
                              dtype="fp32")
            row.update(gap=loss_gap([x["loss"] for x in done], one),
                       ms=statistics.median(x["ms"] for x in done))
        except Failed as e:
            row["failed"] = str(e)
        r["ranks"].append(row)
        run.save("curves", r)


# ---- the whole

# name, function, seconds that are reserved for the stage; it may also use what earlier ones left
FIRST = [("facts", facts, 20), ("build", build, 140), ("probes", probes, 10), ("tests", tests, 120),
         ("kernels", kernels, 120)]
SECOND = [("facts", facts, 20), ("train", train, 300), ("curves", curves, 70),
          ("sanitizer", sanitized, 90)]
HALVES = {"first": FIRST, "second": SECOND}
STAGES = [name for name, _, _ in FIRST + SECOND[1:]]
SECONDS = 530  # of a half
# stages that write one file
FILES = {"facts": "facts", "build": "facts", "probes": "tests", "tests": "tests",
         "sanitizer": "tests", "kernels": "kernels", "train": "train", "curves": "curves"}


TINYSHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def write_tokens(run):
    """Bytes of a text as tokens: of --text, else of tinyshakespeare, else of this program's own
    sources. Which one it is shows by its bytes."""
    folder = os.environ.get("TEST_DATA_DIR") or os.path.join(TOP, "..", "shared", "data")
    texts = [run.args.text, os.path.join(folder, "tinyshakespeare.txt")]
    paths = [x for x in texts if x and os.path.exists(x)][:1]
    run.text = os.path.basename(paths[0]) if paths else "sources of parallel/"
    if not paths:
        paths = sorted(glob.glob(os.path.join(TOP, "parallel", "*", "*.[ch]")))
    data = b""
    for path in paths:
        with open(path, "rb") as f:
            data += f.read()
    run.tinyshakespeare = hashlib.sha256(data).hexdigest() == TINYSHAKESPEARE
    run.tokens = os.path.join(run.scratch, "text_train.bin")
    with open(run.tokens, "wb") as f:  # nanoGPT's format: 16-bit tokens without a header
        f.write(bytes(x for c in data for x in (c, 0)))


def run_stage(run, name, f):
    """Runs a stage with all the time that is not reserved for later stages."""
    order = [stage for stage, _, _ in run.half]
    later = sum(s for stage, _, s in run.half[order.index(name) + 1:] if stage in run.args.stages)
    start, run.stage_end = time.monotonic(), run.deadline - later * run.args.seconds / SECONDS
    budget = run.left()
    try:
        value = f(run)
    except Failed as e:
        value = {"broke": str(e)}
    except Exception as e:  # a mistake of this script must not cost the other stages
        value = {"broke": f"{type(e).__name__}: {e}"}
    value.update(seconds_spent=round(time.monotonic() - start, 1),
                 **{k: run.stamp[k] for k in ("date", "commit")})
    run.save(name, value)
    run.say(f"== {name}: {value['seconds_spent']:.0f} s of {budget:.0f}"
            + (f"   BROKE: {value['broke']}" if "broke" in value else ""))
    return value


def measure_half(run, half):
    """Runs facts and the requested stages of a half. Returns those that broke."""
    run.half, run.deadline = half, time.monotonic() + run.args.seconds
    broken = []
    for name, f, _ in half:
        if name not in run.args.stages and name != "facts":
            continue
        if time.monotonic() > run.deadline - 5:
            run.say(f"== {name}: no time left")
            broken.append(name)
            continue
        torch = warm_torch(run) if name == "build" else None
        value = run_stage(run, name, f)
        if torch and torch.poll() is None:
            os.killpg(torch.pid, 9)
            torch.wait()
        if "broke" in value:
            broken.append(name)
        if name == "facts":
            run.torch = bool(value.get("torch"))
            run.say(f"PyTorch: {value.get('torch') or 'absent: its rows are left out'}")
    return broken


def measure(run):
    if run.rehearse:
        run.say("a rehearsal: emulated GPU, tiny sizes; no time means anything")
    write_tokens(run)
    broken = []
    for half in HALVES.values():
        if any(name in run.args.stages for name, _, _ in half if name != "facts"):
            broken += measure_half(run, half)
    shutil.rmtree(run.scratch, ignore_errors=True)
    run.say("\n" + bench_gpu_table.table(run.args.out, run.prefix))
    run.say(f"{time.monotonic() - run.start:.0f} s in all; results in "
            f"{run.args.out}/{run.prefix}-*.json" +
            (f"; broken stages: {', '.join(dict.fromkeys(broken))}" if broken else ""))
    return bool(broken or bench_gpu_table.wrong(run.args.out, run.prefix, run.args.stages))


def main():
    p = bench_page.parser(__doc__)
    p.add_argument("--out", default=os.path.join(TOP, "bench", "results"),
                   help="folder of the results (default bench/results)")
    p.add_argument("--stages", default="first,second",
                   help="parts or stages to run, joined by commas (default first,second)")
    p.add_argument("--seconds", type=float, default=SECONDS,
                   help=f"time of a part (default {SECONDS})")
    p.add_argument("--no-build", action="store_true", help="use programs that were built before")
    p.add_argument("--programs", default="", help="folder of the programs (default build/cuda, of "
                   "a rehearsal build)")
    p.add_argument("--models", default="",
                   help="models of the training steps: d12-32,d24,... (NAME or NAME-B); the "
                   "rows of other models stay in the file as they are (default: all)")
    p.add_argument("--rehearse", action="store_true",
                   help="run every stage at tiny sizes on the emulated GPU of the tests")
    p.add_argument("--python", default=sys.executable,
                   help="Python with PyTorch (default: this one)")
    p.add_argument("--sanitizer", default="", help="compute-sanitizer (default: of PATH or "
                   "/usr/local/cuda; of a rehearsal none)")
    p.add_argument("--text", default="", help="file of tinyshakespeare, for the loss curves")
    p.add_argument("--libraries", default="", help="folders of cuBLASLt and NCCL, ':' between them")
    bench_page.add_page(p)
    args = p.parse_args()
    if args.page:
        return bench_page.put(args, "gpu", bench_gpu_table.page(args.out))
    if args.text and not os.path.exists(args.text):
        p.error(f"--text: {args.text} is missing")
    args.stages = sum(([name for name, _, _ in HALVES[x]] if x in HALVES else [x]
                       for x in args.stages.split(",")), [])
    if set(args.stages) - set(STAGES):
        p.error(f"--stages: the stages are {', '.join(STAGES)}, or first or second")
    args.out = os.path.abspath(args.out)
    args.command = shlex.join(["python3", "tools/bench_gpu.py"] + sys.argv[1:])
    return measure(Run(args))


if __name__ == "__main__":
    sys.exit(main())
