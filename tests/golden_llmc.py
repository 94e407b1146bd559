#!/usr/bin/env python3
"""Makes tests/golden/llmc_v3.bin, llmc_v5.bin and llmc_debug_state.bin: a tiny GPT-2 of
`transformers` with random weights, written as llm.c writes models (fp32 and bf16) and debug states
(tokens, logits, loss, gradients).

    python3 tests/golden_llmc.py tests/golden

The committed files were made with torch 2.x and transformers 5.x on a CPU (the versions used are
printed)."""
import sys

import numpy as np
import torch
import transformers

V, S, L, H, C, B, T = 131, 12, 2, 2, 16, 2, 9
VP = (V + 127) // 128 * 128


def bf16_bits(x):
    return x.to(torch.bfloat16).view(torch.int16).numpy()


def tensors(model, of):
    """The sixteen tensors in file order; `of` picks the value or the gradient."""
    p = {k: of(v) for k, v in model.transformer.named_parameters()}
    pad = torch.zeros(VP - V, C)
    yield torch.cat([p["wte.weight"], pad])
    yield p["wpe.weight"]
    kinds = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
             "attn.c_proj.weight",
             "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
             "mlp.c_proj.weight", "mlp.c_proj.bias"]
    for kind in kinds:
        for l in range(L):
            x = p[f"h.{l}.{kind}"]
            yield x.T.contiguous() if x.ndim == 2 else x  # Conv1D is [in, out], the file [out, in]
    yield p["ln_f.weight"]
    yield p["ln_f.bias"]


def write(path, header, *parts):
    h = np.zeros(256, "<i4")
    h[:len(header)] = header
    with open(path, "wb") as f:
        f.write(h.tobytes())
        for x in parts:
            f.write(np.ascontiguousarray(x).tobytes())


def main(folder):
    print("torch", torch.__version__, "transformers", transformers.__version__)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = transformers.GPT2Config(vocab_size=V, n_positions=S, n_layer=L, n_head=H, n_embd=C,
                                     resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).float().eval()
    with torch.no_grad():  # larger than a real start, so that every tensor matters
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    x = torch.randint(0, V, (B, T))
    y = torch.randint(0, V, (B, T))
    logits = model(x).logits
    loss = torch.nn.functional.cross_entropy(logits.view(-1, V), y.view(-1))
    loss.backward()
    head = [20240326, 3, S, V, L, H, C, VP]
    write(f"{folder}/llmc_v3.bin", head, *(t.detach().numpy() for t in tensors(model, lambda p: p)))
    head[1] = 5
    write(f"{folder}/llmc_v5.bin", head,
          *(bf16_bits(t.detach()) for t in tensors(model, lambda p: p)))
    write(f"{folder}/llmc_debug_state.bin", [20240327, 2, B, T], x.numpy().astype("<i4"),
          y.numpy().astype("<i4"),
          logits.detach().numpy(), loss.detach().numpy(),
          *(t.numpy() for t in tensors(model, lambda p: p.grad)))


main(sys.argv[1])
