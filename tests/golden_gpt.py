#!/usr/bin/env python3
"""Golden numbers of a tiny GPT-2, LLaMA and Qwen 3 shape, from PyTorch in double precision.

    python3 tests/golden_gpt.py        writes tests/golden/KIND_{weights,grads}.bin and KIND.txt
    python3 tests/golden_gpt.py llama  those of one shape

Needs torch, numpy and transformers; the test suite reads only the files. The models below are
plain; each is asserted to equal transformers' GPT2LMHeadModel, LlamaForCausalLM or
Qwen3ForCausalLM with the same weights. Double precision makes the files the true values to fp32:
what tests/test_golden.c sees is the error of the code under test alone. How far PyTorch's own fp32
lies from them is printed into the .txt files, which is where the tolerances of the test come from.

.bin: lines of text that start with '#', lines "name rows cols", the line "data", and then the
tensors in that order as little-endian fp32, row-major. Names and layouts of base/tensor.h.
.txt: lines of a word and numbers, see write_text.
"""
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers

SEED, STEPS = 20240917, 10
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
B, S, V, C, L = 2, 16, 67, 32, 2  # odd V: no vector width divides it
SHAPES = {
    "gpt2": dict(H=2, Hkv=2, F=128, text=f"layers={L},heads=2,channels={C},seq={S},vocab={V}"),
    "llama": dict(H=2, Hkv=1, F=88, text=f"llama,layers={L},heads=2,kv_heads=1,channels={C},"
                                         f"ffn=88,seq={S},vocab={V},eps=1e-05,theta=10000"),
    "qwen3": dict(H=3, Hkv=1, D=10, F=88,
                  text=f"llama,layers={L},heads=3,kv_heads=1,channels={C},ffn=88,seq={S},vocab={V},"
                       "eps=1e-05,theta=10000,head_dim=10,qk_norm=1"),
}


def head_size(kind):
    return SHAPES[kind].get("D", C // SHAPES[kind]["H"])


def shapes(kind):
    """(name, rows, cols) of every parameter, in the order of base/tensor.c; rows 1: a vector."""
    s, gpt2 = SHAPES[kind], kind == "gpt2"
    D = head_size(kind)
    qkv, att = (s["H"] + 2 * s["Hkv"]) * D, s["H"] * D
    out = [("wte", V, C)] + ([("wpe", S, C)] if gpt2 else [])
    for i in range(L):
        norms = [("qk_norm", 0, 2 * D)] if kind == "qwen3" else []
        for name, rows, cols in [("ln1", 0, C), ("qkv", C, qkv), *norms, ("attn_out", att, C),
                                 ("ln2", 0, C), ("up", C, s["F"] * (1 if gpt2 else 2)),
                                 ("down", s["F"], C)]:
            out.append((f"h.{i}.{name}.weight", max(rows, 1), cols))
            if gpt2:
                out.append((f"h.{i}.{name}.bias", 1, cols))
    out += [("lnf.weight", 1, C)] + ([("lnf.bias", 1, C)] if gpt2 else [])
    return out if gpt2 else out + [("head", V, C)]


def is_norm(name):
    return ".ln" in name or name.startswith("lnf") or "qk_norm" in name


def initial(kind):
    """Larger than a real start, so that every path carries signal and no gradient is tiny."""
    rng = np.random.default_rng(SEED)
    w = {}
    for name, rows, cols in shapes(kind):
        x = 0.15 * rng.standard_normal((rows, cols))
        if is_norm(name) and name.endswith("weight"):
            x += 1
        w[name] = x.astype(np.float32)
    tokens = rng.integers(0, V, (STEPS, B, S + 1))
    inputs, targets = tokens[:, :, :-1].copy(), tokens[:, :, 1:].copy()
    targets[3, 0, 5] = targets[3, 1, 11] = -1  # positions that are not counted
    return w, inputs, targets


def rotate(x):  # [B, heads, S, D]: pairs (i, i + D/2)
    d = x.shape[-1]
    angle = torch.arange(S, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rms_norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def forward(kind, w, tokens):
    s, gpt2 = SHAPES[kind], kind == "gpt2"
    H, Hkv, D = s["H"], s["Hkv"], head_size(kind)
    mask = torch.full((S, S), -math.inf, dtype=w["wte"].dtype).triu(1)

    def norm(x, name):
        if gpt2:
            return F.layer_norm(x, (C,), w[name + ".weight"][0], w[name + ".bias"][0], 1e-5)
        return rms_norm(x, w[name + ".weight"][0])

    def linear(x, name):
        y = x @ w[name + ".weight"]
        return y + w[name + ".bias"] if gpt2 else y

    x = w["wte"][tokens]
    if gpt2:
        x = x + w["wpe"]
    for i in range(L):
        heads = linear(norm(x, f"h.{i}.ln1"), f"h.{i}.qkv").view(B, S, H + 2 * Hkv, D)
        q, k, v = heads.transpose(1, 2).split((H, Hkv, Hkv), 1)
        if kind == "qwen3":
            weight = w[f"h.{i}.qk_norm.weight"][0]
            q, k = rms_norm(q, weight[:D]), rms_norm(k, weight[D:])
        if not gpt2:
            q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(H // Hkv, 1) for t in (k, v))
        p = (q @ k.transpose(-1, -2) / math.sqrt(D) + mask).softmax(-1)
        x = x + linear((p @ v).transpose(1, 2).reshape(B, S, H * D), f"h.{i}.attn_out")
        u = linear(norm(x, f"h.{i}.ln2"), f"h.{i}.up")
        if gpt2:
            u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
        else:
            u = F.silu(u[..., : s["F"]]) * u[..., s["F"]:]
        x = x + linear(u, f"h.{i}.down")
    return norm(x, "lnf") @ (w["wte"] if gpt2 else w["head"]).T


def loss_of(logits, targets):
    return F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-1)


def hugging_face(kind, w):
    """The same weights in transformers' model, and a function name -> gradient in our layout."""
    s = SHAPES[kind]
    D = head_size(kind)
    if kind == "gpt2":
        m = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=V, n_positions=S, n_embd=C, n_layer=L, n_head=s["H"], resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=1e-5, activation_function="gelu_new",
            bos_token_id=0, eos_token_id=0)).double()
        short = {"ln1": "ln_1", "qkv": "attn.c_attn", "attn_out": "attn.c_proj", "ln2": "ln_2",
                 "up": "mlp.c_fc", "down": "mlp.c_proj"}
        pieces = {"wte": "wte.weight", "wpe": "wpe.weight"}
        for tail in ("weight", "bias"):
            pieces[f"lnf.{tail}"] = f"ln_f.{tail}"
            for i in range(L):
                for a, b in short.items():
                    pieces[f"h.{i}.{a}.{tail}"] = f"h.{i}.{b}.{tail}"
        pieces = {k: ["transformer." + v] for k, v in pieces.items()}
    else:
        model, config = ((transformers.Qwen3ForCausalLM, transformers.Qwen3Config)
                         if kind == "qwen3" else
                         (transformers.LlamaForCausalLM, transformers.LlamaConfig))
        m = model(config(
            vocab_size=V, hidden_size=C, intermediate_size=s["F"], num_hidden_layers=L,
            num_attention_heads=s["H"], num_key_value_heads=s["Hkv"], max_position_embeddings=S,
            head_dim=D, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
            bos_token_id=0, eos_token_id=0)).double()
        pieces = {"wte": ["model.embed_tokens.weight"], "lnf.weight": ["model.norm.weight"],
                  "head": ["lm_head.weight"]}
        for i in range(L):
            p, q = f"model.layers.{i}.", f"h.{i}."
            pieces[q + "ln1.weight"] = [p + "input_layernorm.weight"]
            pieces[q + "ln2.weight"] = [p + "post_attention_layernorm.weight"]
            pieces[q + "qkv.weight"] = [p + f"self_attn.{x}_proj.weight" for x in "qkv"]
            if kind == "qwen3":
                pieces[q + "qk_norm.weight"] = [p + f"self_attn.{x}_norm.weight" for x in "qk"]
            pieces[q + "attn_out.weight"] = [p + "self_attn.o_proj.weight"]
            pieces[q + "up.weight"] = [p + f"mlp.{x}_proj.weight" for x in ("gate", "up")]
            pieces[q + "down.weight"] = [p + "mlp.down_proj.weight"]
    params = dict(m.named_parameters())
    flip = kind != "gpt2"  # nn.Linear holds [out, in]

    def linear(name):
        return flip and name.startswith("h.") and not is_norm(name)

    with torch.no_grad():
        for name, files in pieces.items():
            parts = w[name].detach()
            if len(files) == 3:
                parts = parts.split((s["H"] * D, s["Hkv"] * D, s["Hkv"] * D), 1)
            elif len(files) == 2:
                parts = parts.split(parts.shape[1] // 2, 1)
            else:
                parts = [parts]
            for f, x in zip(files, parts):
                params[f].copy_((x.T if linear(name) else x).reshape(params[f].shape))

    def grad(name):
        g = [params[f].grad for f in pieces[name]]
        return torch.cat([x.T if linear(name) else x.reshape(-1, x.shape[-1]) for x in g], 1)

    return m, grad


def check_hugging_face(kind, w, tokens, targets, logits):
    m, grad = hugging_face(kind, w)
    theirs = m(torch.tensor(tokens)).logits
    loss_of(theirs, torch.tensor(targets)).backward()
    # transformers computes the angles of rope in fp32: 1e-6 there, 1e-12 for GPT-2
    limit = 1e-11 if kind == "gpt2" else 1e-5
    worst = (theirs - logits).abs().max().item()
    for name in w:
        worst = max(worst, (grad(name) - w[name].grad).abs().max().item())
    assert worst < limit, f"{kind}: differs from transformers by {worst}"
    print(f"{kind}: logits and gradients equal transformers' within {worst:.1e}")


def train(kind, dtype):
    w, inputs, targets = initial(kind)
    w = {k: torch.tensor(x, dtype=dtype, requires_grad=True) for k, x in w.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [x for x in w.values() if x.shape[0] > 1], "weight_decay": DECAY},
         {"params": [x for x in w.values() if x.shape[0] == 1], "weight_decay": 0}],
        lr=LR, betas=BETAS, eps=EPS)
    r = {"losses": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = forward(kind, w, torch.tensor(inputs[step]))
        loss = loss_of(logits, torch.tensor(targets[step]))
        loss.backward()
        if step == 0:
            r["logits"] = logits.detach().clone()
            r["grads"] = {k: x.grad.clone() for k, x in w.items()}
            if dtype == torch.float64:
                check_hugging_face(kind, w, inputs[0], targets[0], logits.detach())
        r["losses"].append(loss.item())
        r["norms"].append(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP).item())
        optimizer.step()
    r["final"] = {k: x.detach() for k, x in w.items()}
    return r


def header(kind):
    return "".join(f"# {line}\n" for line in (
        f"{kind}: {SHAPES[kind]['text']}",
        f"by tests/golden_gpt.py, seed {SEED}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, numpy {np.__version__}",
        "command: python3 tests/golden_gpt.py"))


def write_bin(kind, what, tensors):
    with open(f"tests/golden/{kind}_{what}.bin", "wb") as f:
        lines = "".join(f"{k} {x.shape[0]} {x.shape[1]}\n" for k, x in tensors.items())
        f.write((header(kind) + lines + "data\n").encode())
        for x in tensors.values():
            f.write(np.ascontiguousarray(x, "<f4").tobytes())


def spread(n):
    """Up to 16 places in a tensor of n elements."""
    return sorted({i * (n - 1) // 15 for i in range(16)})


def distance(a, b):
    return max((a[k].double() - b[k]).abs().max().item() for k in b)


def write_text(kind, inputs, targets, gold, fp32):
    rel = max(abs(a - b) / b for a, b in zip(fp32["norms"], gold["norms"]))
    nmse = max(((fp32["grads"][k] - g).square().sum() / g.square().sum()).item()
               for k, g in gold["grads"].items())
    with open(f"tests/golden/{kind}.txt", "w") as f:
        f.write(header(kind))
        f.write(f"# PyTorch's own fp32 lies from these numbers: losses "
                f"{np.abs(np.subtract(fp32['losses'], gold['losses'])).max():.1e}, norms "
                f"{rel:.1e} relative, logits "
                f"{(fp32['logits'] - gold['logits']).abs().max():.1e}, gradients "
                f"{distance(fp32['grads'], gold['grads']):.1e} (nmse of a tensor {nmse:.1e}), "
                f"final weights {distance(fp32['final'], gold['final']):.1e}\n")
        f.write(f"config {SHAPES[kind]['text']}\n")
        f.write(f"batch {B} {S} {STEPS}\n")
        f.write(f"adamw {LR:g} {BETAS[0]:g} {BETAS[1]:g} {EPS:g} {DECAY:g} {CLIP:g}\n")
        for step in range(STEPS):
            f.write(f"inputs {' '.join(map(str, inputs[step].ravel()))}\n")
            f.write(f"targets {' '.join(map(str, targets[step].ravel()))}\n")
        for step in range(STEPS):
            f.write(f"step {step + 1} {gold['losses'][step]:.9g} {gold['norms'][step]:.9g}\n")
        for name, x in gold["final"].items():
            x = x.reshape(-1)
            f.write(f"final {name} {x.sum():.9g} {x.abs().sum():.9g}")
            f.write("".join(f" {i}:{x[i]:.9g}" for i in spread(len(x))) + "\n")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    os.makedirs("tests/golden", exist_ok=True)
    torch.use_deterministic_algorithms(True)
    for kind in sys.argv[1:] or SHAPES:
        w, inputs, targets = initial(kind)
        gold, fp32 = train(kind, torch.float64), train(kind, torch.float32)
        write_bin(kind, "weights", w)
        write_bin(kind, "grads", {"logits": gold["logits"].reshape(B * S, V), **gold["grads"]})
        write_text(kind, inputs, targets, gold, fp32)
        print(f"{kind}: loss {gold['losses'][0]:.6f} .. {gold['losses'][-1]:.6f}, "
              f"norm {gold['norms'][0]:.4f} .. {gold['norms'][-1]:.4f}")


if __name__ == "__main__":
    sys.exit(main())
