"""The checks of tools/bench_gpu.py: the tests of CUDA kernels on the device, first alone, then
under compute-sanitizer."""
import concurrent.futures
import glob
import os
import re
import shutil
import threading
import time

from bench_page import TOP

# The tests that run first under compute-sanitizer: kernels of each family, then whole steps and
# ranks. Each line is a group of tests, given by words in their names
FIRST = ["cuda_attention_takes_no_scratch", "cuda_attention_by_tiles",
         "cuda_norm_of_cut cuda_norm_backward", "cuda_classifier_matches", "cuda_embedding_matches",
         "cuda_matmul_by_own", "cuda_coll_gives",
         "cuda_adamw cuda_sums cuda_swiglu cuda_bias_backward cuda_rope cuda_copy",
         "cuda_model_trains_as", "cuda_mesh_of_llama"]
# tests of a later group: a program starts slowly under compute-sanitizer, and a program that does
# not end loses all its tests
TESTS_OF_A_GROUP = 4
TOO_SHORT = 3  # seconds; with less time left no group is started
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped", re.M)


class Failed(Exception):
    pass


def last_line(text):
    lines = [x for x in text.strip().splitlines() if x.strip()]
    return lines[-1].strip()[:300] if lines else "no output"


OUT_OF_TIME = "ran out of its time"


def ending(status, out):
    """The reason why a command failed. After a timeout the last line of output is left out, as it
    says nothing about the time."""
    return OUT_OF_TIME if status == 124 else f"status {status}: {last_line(out)}"


def verdict(out, status):
    """Counts of a run of tests, and its lines with errors. status None: the run was not started. If
    every test is skipped, the status of the test program says so."""
    m = COUNTS.search(out)
    r = dict(zip(("passed", "failed", "skipped"), map(int, m.groups()) if m else (0, 0, 0)))
    none_ran = status == 1 and r["skipped"] and "no test was run" in out
    if status is None:
        r["end"] = "no time was left for it"
    elif status == 124 or (status and not r["failed"] and not none_ran):
        r["end"] = ending(status, out)
    r["complaints"] = [x.strip()[:300] for x in out.splitlines() if x.startswith("FAIL")
                       or re.match(r"\s+tests/\S+:\d+:", x)][:20]
    return r


def beside(run, groups, command, seconds, keep):
    """Runs groups of tests at the same time, started in order while there is time. Calls
    keep(index, status, output) when a group is done, for one group at a time. A test that ends its
    program affects only its own group."""
    until, lock = time.monotonic() + seconds, threading.Lock()

    def one(i):
        left, status, out = until - time.monotonic(), None, ""
        if left >= TOO_SHORT:
            status, out = run.shell(command + groups[i], limit=left, check=False)
        with lock:
            keep(i, status, out)

    with concurrent.futures.ThreadPoolExecutor(max_workers=2 if run.rehearse else 8) as pool:
        list(pool.map(one, range(len(groups))))


def tests_of_files(device_only=False):
    """The tests of each file with tests of CUDA kernels. device_only: without tests that run only
    in the emulator."""
    files = {}
    for path in sorted(glob.glob(os.path.join(TOP, "tests", "test_*.c"))):
        with open(path) as f:
            found = re.findall(r"^TEST(_EMULATED|_ON_CUDA|)\((cuda_\w+)[,)]", f.read(), re.M)
        if found:
            files[os.path.basename(path)] = [
                name for kind, name in found if not (device_only and kind == "_EMULATED")]
    return files


def rehearsed(files):
    return {name: files[name] for name in ("test_move.c", "test_activation.c")}


def tests(run):
    """Stage: every kernel against double precision; collectives, whole steps and the program
    against the CPU."""
    files = rehearsed(tests_of_files()) if run.rehearse else tests_of_files()
    names, r = list(files), {"groups": {}}

    def keep(i, status, out):
        groups = r["groups"]
        groups[names[i]] = verdict(out, status)
        r.update({k: sum(v[k] for v in groups.values()) for k in ("passed", "failed", "skipped")})
        r["ended"] = [name for name, v in groups.items() if "end" in v]
        run.save("tests", r)

    beside(run, list(files.values()), [run.program("run_tests")], run.left(), keep)
    return r


def sanitizer(run):
    """The path of compute-sanitizer, or None. There is none for the emulated GPU of a rehearsal,
    unless an option names one."""
    if run.args.sanitizer or run.rehearse:
        return run.args.sanitizer or None
    return shutil.which("compute-sanitizer") or next(
        (p for p in ["/usr/local/cuda/bin/compute-sanitizer"] if os.access(p, os.X_OK)), None)


def groups_to_sanitize(files):
    """Groups of tests, each test in one group: first those of FIRST, then the others by file. Tests
    of whole programs are the slowest."""
    names, groups = sum(files.values(), []), []
    for words in FIRST:
        groups.append([])
        for word in words.split():
            found = [n for n in names if word in n and not any(n in g for g in groups)]
            if not found:
                raise Failed(f"no test is called {word}")
            groups[-1] += found
    for file in sorted(files, key=lambda file: "program" in file):
        rest = [n for n in files[file] if not any(n in g for g in groups)]
        groups += [rest[i:i + TESTS_OF_A_GROUP] for i in range(0, len(rest), TESTS_OF_A_GROUP)]
    return groups


def sanitized(run):
    """Stage: memory errors and races of kernels by compute-sanitizer. The second tool gets the time
    that the first leaves."""
    tool, groups = sanitizer(run), groups_to_sanitize(tests_of_files(device_only=True))
    if not tool:
        return {"absent": "the emulator looks at memory itself" if run.rehearse
                else "compute-sanitizer is not here"}
    if run.rehearse:
        few = sum(rehearsed(tests_of_files()).values(), [])
        groups = [g for g in ([n for n in g if n in few] for g in groups) if g]
    result = {}
    for kind, seconds in (("memcheck", run.left() / 2), ("racecheck", None)):
        command = [tool, "--tool", kind, "--error-exitcode", "9", "--target-processes", "all",
                   run.program("run_tests")]
        result[kind] = r = {"errors": 0, "passed": 0, "failed": 0, "finished": 0,
                            "tests": sum(map(len, groups)), "of": len(groups), "groups": [],
                            "seen": []}

        def keep(i, status, out, r=r):
            sums = re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", out)
            group = verdict(out, status)
            r["errors"] += sum(map(int, sums))
            r["finished"] += bool(sums) and bool(COUNTS.search(out))
            r["passed"] += group["passed"]
            r["failed"] += group["failed"]
            r["groups"].append(dict(group, tests=groups[i]))
            r["seen"] += [x for x in out.splitlines()
                          if re.search(r"========= (Invalid|Error: Race|Warning: "
                                       r"Race|Uninitialized)", x)][:10]
            run.save("sanitizer", result)

        beside(run, groups, command, seconds or run.left(), keep)
    return result
