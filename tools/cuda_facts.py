#!/usr/bin/env python3
"""Extracts facts about the machine code (SASS) of the kernels that take most of a GPU's time, and
compares them with a table that is kept: tests/golden/sass.txt.

    python3 tools/cuda_facts.py FOLDER            compares objects in FOLDER (make cuda-check, built
                                                  with --no-compress) and their logs with the table
    python3 tools/cuda_facts.py FOLDER --write    writes the table

A row is a kernel for sm_90a (matmul_sm80.cu: for sm_80): registers at launch, bytes of spills, and
instructions. For each innermost loop with exponentials (MUFU.EX2) or matmuls (HGMMA of warpgroups,
HMMA of warps) a row has its instructions, the number of exponentials and matmuls, and the number of
exponentials during which a matmul of the warpgroup is in flight.

Whatever the compiler, the following must hold:

    all                no spills
    matmul_sm90.cu     ptxas did not serialise wgmma: 4 HGMMA a step for 64 rows, once before the
                       loop and once in it, and two waits, of which the one in the loop leaves a
                       step in flight. Beside them a step has fewer instructions than fit into the
                       time of its HGMMA, and no memory barrier (MEMBAR)
    matmul_sm80.cu     a step of 64 HMMA, which take 512 cycles, issues fewer instructions than that
    attention          every exponential of a loop runs beside a matmul
    norm backward      a loop fetches a whole row ahead by asynchronous copies, waits at no barrier
                       and has at most MOST_PER_ELEMENT instructions an element
    norm, embedding    the norm of a residual fetches all words of a row, the embedding's backward
                       four rows, before the first is added
    stores             of whole words in the embedding's backward, a reduce and casts of weights
    classifier         at most MOST_PER_LOGIT instructions a logit

The other numbers must equal the table if the compiler is the table's; another compiler may change
them.

Disassembling needs nvdisasm: from PATH, the toolkit, or the package nvidia-cuda-nvdisasm, which pip
installs into FOLDER.
"""
import argparse
import glob
import os
import re
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "..", "tests", "golden", "sass.txt")
KERNELS = {  # files, and the names of their kernels that are in the table
    "layers/attention_sm90": ".", "layers/attention_sm90_backward": "gradient_of",
    "layers/matmul_sm80": "sm80", "layers/matmul_sm90": ".",
    "layers/classifier": r"whole_staged<__nv_bfloat16>",
    "layers/norm": "backward_rows<__nv_bfloat16, [3457], 1>|"
                   "forward_rows<__nv_bfloat16, [34], 1, true>",
    "layers/adamw": r"update_list<__nv_bfloat16>",
    "layers/cuda/reduce": r"reduce_rows<__nv_bfloat16, 8, 3>",
    "layers/move": r"round_floats<4>",
    "layers/embedding": r"sum_runs<(__nv_bfloat16, 8|float, 4)>",
}
OLDER = {"layers/matmul_sm80": "sm_80"}
HMMA, MOST_IN_LOOP = 64, 448  # HMMA of a step; instructions of its loop
HGMMA, MOST_BESIDE = 4, 200  # HGMMA of a step for each 64 rows; other instructions of its loop
MOST_CALLS = 8  # calls in a matmul on Hopper: 64-bit divisions of its schedule
WORD, MOST_PER_ELEMENT = 8, 25  # elements in 16 bytes of a row of norm
LOGITS, MOST_PER_LOGIT = 32, 14  # LOGITS: of a thread in an iteration of the loop
SHORT = 20  # instructions; shorter loops only wait for a barrier


def nvdisasm(folder):
    found = shutil.which("nvdisasm")
    for pattern in ("/usr/local/cuda/bin/nvdisasm", f"{folder}/nvdisasm/nvidia/*/bin/nvdisasm"):
        found = found or next(iter(glob.glob(pattern)), None)
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
                        f"{folder}/nvdisasm", "nvidia-cuda-nvdisasm"], capture_output=True)
        found = next(iter(glob.glob(f"{folder}/nvdisasm/nvidia/*/bin/nvdisasm")), None)
    return found


def cubins(path):
    """The ELF files for CUDA (machine 190) inside an object file."""
    with open(path, "rb") as f:
        data = f.read()
    for m in re.finditer(b"\x7fELF\x02\x01", data):
        at = m.start()
        if struct.unpack_from("<H", data, at + 18)[0] != 190:
            continue
        programs, sections = struct.unpack_from("<QQ", data, at + 32)
        size, n, size_s, n_s = struct.unpack_from("<HHHH", data, at + 54)
        yield data[at:at + max(programs + size * n, sections + size_s * n_s)]


def plain(name):
    """The name of a kernel without the parts that differ from file to file."""
    name = subprocess.run(["c++filt", name], capture_output=True, text=True).stdout.strip()
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    depth, end = 0, len(name)
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            end = i
            break
    return re.sub(r"\((?:\w+|\(\w+\))\)(?=\d)", "", name[:end])


def sass(tool, path, scratch):
    """The instructions and labels of each kernel of an object, in order."""
    kernels = {}
    for cubin in cubins(path):
        with open(scratch, "wb") as f:
            f.write(cubin)
        text = subprocess.run([tool, "-c", scratch], capture_output=True, text=True,
                              check=True).stdout
        for line in text.splitlines():
            m = re.match(r"\.text\.(\S+):", line)
            if m:
                code = kernels.setdefault(plain(m.group(1)), [])
            m = re.match(r"(\.L_x_\d+):|\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
            if m and kernels:
                code.append(m.group(1) or m.group(2).strip())
    return kernels


def loops(code):
    """(begin, end) of the innermost loops that are not short."""
    labels = {x: i for i, x in enumerate(code) if x.startswith(".L_x_")}
    found = set()
    for i, x in enumerate(code):
        m = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", x)
        if m and labels.get(m.group(1), i) < i - SHORT:
            found.add((labels[m.group(1)], i))
    return sorted(x for x in found if not any(y != x and x[0] <= y[0] and y[1] <= x[1]
                                              for y in found))


def of_loop(code):
    """Of a loop: numbers of instructions, exponentials, exponentials beside a matmul, matmuls of
    warpgroups and of warps."""
    n = exps = beside = matmuls = flying = of_warps = 0
    for x in code:
        if x.startswith(".L_x_") or "NOP" in x:
            continue
        n += 1
        if "HGMMA" in x:
            matmuls, flying = matmuls + 1, 1
        of_warps += "HMMA." in x
        m = re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\d)", x)
        if m:
            flying = int(m.group(1), 16)
        if "MUFU.EX2" in x:
            exps, beside = exps + 1, beside + (flying > 0)
    return n, exps, beside, matmuls, of_warps


def registers(log, arch):
    """For each kernel: registers at launch and bytes of spills for an architecture, from the log of
    ptxas."""
    facts, name, spills = {}, None, 0
    with open(log) as f:
        for line in f:
            m = re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line)
            if m:
                name, spills = plain(m.group(1)) if m.group(2) == arch else None, 0
            m = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
            if m:
                spills = int(m.group(1)) + int(m.group(2))
            m = re.search(r"Used (\d+) registers", line)
            if m and name:
                facts[name] = int(m.group(1)), spills
    return facts


def serialised(name, code, inner):
    """An error in the matmuls of a kernel of matmul_sm90.cu; None: no error."""
    each = HGMMA * (2 if name.endswith(", 1> >") else 1)  # PINGPONG: 128 rows of a warpgroup
    left = [x[-1] for x in code if "WARPGROUP.DEPBAR" in x]
    n = sum("HGMMA" in x for x in code)
    steps = [k - m for k, _, _, m, _ in inner if m == each]
    if n != 2 * each or left != ["1", "0"] or len(steps) != 1:
        return (f"{n} HGMMA, waits that leave {' '.join(left) or 'none'} in flight, {len(steps)} "
                f"loops of {each} HGMMA")
    return f"{steps[0]} instructions beside a step" if steps[0] > MOST_BESIDE else None


def waits_for_memory(code):
    """An error if a step of a kernel of matmul_sm90.cu has a memory barrier; None: no error. The
    compiler made one of a release at the scope of a cluster, which took half of the time of a
    matmul on an H200."""
    steps = [code[a:b] for a, b in loops(code) if any("HGMMA" in x for x in code[a:b])]
    return "a barrier for memory in a step" if "MEMBAR" in str(steps) else None


def table(folder, tool, wrong):
    """The rows of the table. Appends violations of the rules above to `wrong`."""
    rows = []
    for file, wanted in KERNELS.items():
        path = os.path.join(folder, file)
        known = registers(path + ".log", OLDER.get(file, "sm_90a"))
        code_of = sass(tool, path + ".o", os.path.join(folder, "facts.cubin"))
        for name in sorted(k for k in code_of if re.search(wanted, k)):
            code = code_of[name]
            inner = [of_loop(code[a:b + 1]) for a, b in loops(code)]
            regs, spills = known[name]
            n = sum(not x.startswith(".L_x_") and "NOP" not in x for x in code)
            text = f"{file[len('layers/'):]} {name}: {regs} registers, {spills} spilled, {n}"
            rows.append(text + "".join(f"; loop {k}" + (f", exp2 {e}" if e else "") +
                                       (f" ({b} beside)" if m and e else "") +
                                       (f", hgmma {m}" if m else "") +
                                       (f", hmma {w}" if w else "")
                                       for k, e, b, m, w in inner if e or m or w))
            if spills:
                wrong.append(f"{name}: {spills} bytes are spilled")
            if file in OLDER and not any(w == HMMA and k <= MOST_IN_LOOP
                                         for k, _, _, _, w in inner):
                wrong.append(f"{name}: no loop of {HMMA} HMMA and at most {MOST_IN_LOOP} in all")
            if file == "layers/matmul_sm90" and "sm90" in name:
                said = serialised(name, code, inner) or waits_for_memory(code)
                wrong += [f"{name}: {said}"] if said else []
            calls = sum(bool(re.search(r"\bCALL\b", x)) for x in code)
            if file == "layers/matmul_sm90" and calls > MOST_CALLS:
                wrong.append(f"{name}: {calls} calls, over {MOST_CALLS}: a division of each value?")
            if "attention" in file and not any(m and e for _, e, _, m, _ in inner):
                wrong.append(f"{name}: no loop has exponentials and matmuls")
            if "attention" in file and any(m and b < e for _, e, b, m, _ in inner):
                wrong.append(f"{name}: exponentials without a matmul beside them")
            words = int(name.split(", ")[1]) if file == "layers/norm" else 0  # of a lane
            if "backward_rows" in name:
                turn = next((code[a:b + 1] for a, b in loops(code)
                             if any("SHFL.BFLY" in x for x in code[a:b + 1])), [])
                ahead, each = sum("LDGSTS" in x for x in turn), of_loop(turn)[0] / (WORD * words)
                rows[-1] += f"; {ahead} words fetched ahead, {each:.1f} an element"
                if ahead != 3 * words or any("LDG.E.128" in x or "BAR.SYNC" in x for x in turn):
                    wrong.append(f"{name}: a turn does not fetch the next row, or waits")
                if each > MOST_PER_ELEMENT:
                    wrong.append(f"{name}: {each:.1f} instructions an element, over "
                                 f"{MOST_PER_ELEMENT}")
            if "forward_rows" in name or file == "layers/embedding":
                first = code[:next(i for i, x in enumerate(code) if "FADD" in x)]
                ahead = sum("LDG.E.128" in x for x in first)
                # loads of x and of its addend; embedding: of 4 rows of dx and 4 of dwte, whose fp32
                # takes two loads for one of bf16
                least = 2 * words or (8 if "float, 4" in name else 12)
                rows[-1] += f"; {ahead} loads before a sum"
                if ahead < least:
                    wrong.append(f"{name}: {ahead} loads before a sum, not {least}")
            if any(x in name for x in ("reduce_rows", "round_floats", "sum_runs")):
                wide = sum("STG.E.128" in x or "STG.E.64" in x for x in code)
                rows[-1] += f"; {wide} stores of words"
                if not wide:
                    wrong.append(f"{name}: words are stored in pieces")
            if file == "layers/classifier":
                each = sum(k for k, e, *_ in inner if e >= LOGITS) / LOGITS
                rows[-1] += f"; {each:.1f} a logit"
                if not 0 < each <= MOST_PER_LOGIT:
                    wrong.append(f"{name}: {each:.1f} instructions a logit, over {MOST_PER_LOGIT}")
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", help="folder of the objects and their logs")
    p.add_argument("--nvcc", default="nvcc", help="nvcc whose version is compared with the table's")
    p.add_argument("--write", action="store_true", help="write the table")
    a = p.parse_args()
    tool, wrong = nvdisasm(a.folder), []
    if not tool:
        print("note: no nvdisasm here, nor pip to bring it: the table of SASS is not compared")
        return 0
    says = subprocess.run([a.nvcc, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"release .*", says).group(0)
    lines = [version] + table(a.folder, tool, wrong)
    if a.write:
        with open(TABLE, "w") as f:
            f.write("\n".join(lines) + "\n")
    with open(TABLE) as f:
        kept = f.read().splitlines()
    print("\n".join(lines))
    changed = sorted(set(kept) - set(lines))
    if kept[0] != version:
        print(f"note: the table is of {kept[0]}")
    elif changed:
        wrong += [f"tests/golden/sass.txt has another row: {x}" for x in changed]
        wrong.append("if it is meant: python3 tools/cuda_facts.py FOLDER --write")
    for x in wrong:
        print(x, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
