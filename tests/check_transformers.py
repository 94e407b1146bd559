#!/usr/bin/env python3
"""Do we and Hugging Face's `transformers` mean the same by a model folder?

    python3 tests/check_transformers.py build         random small models of every kind, both ways
    python3 tests/check_transformers.py build DIR...  saved checkpoints, too

For each model `transformers` saves a folder (one file or shards, fp32, bf16 or fp16), `logits`
computes from it, and the numbers are compared; then `convert` writes it anew, `transformers` loads
that, and every tensor must be equal bit for bit. A model that always says the same token must stop
at it in generate() after the conversion, too. Needs torch, numpy and transformers; ends with status
1 when anything differs."""
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch
import transformers
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
GPT2 = dict(vocab_size=131, n_positions=24, n_layer=2, n_head=4, n_embd=32, bos_token_id=None,
            eos_token_id=None)
LLAMA = dict(vocab_size=131, max_position_embeddings=64, num_hidden_layers=2, num_attention_heads=4,
             hidden_size=32,
             intermediate_size=56, num_key_value_heads=2, bos_token_id=None, eos_token_id=None)
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt2 untied, n_inner": lambda: GPT2LMHeadModel(
        GPT2Config(**GPT2, tie_word_embeddings=False, n_inner=72)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "llama tied, biased": lambda: LlamaForCausalLM(LlamaConfig(
        **LLAMA, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0})),
    # of its four pairs of features one keeps its speed, two are slowed down, one is between
    "llama 3": lambda: LlamaForCausalLM(LlamaConfig(
        **LLAMA, rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                                  "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                  "original_max_position_embeddings": 48})),
    "llama, head_dim": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, head_dim=12)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**LLAMA)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**LLAMA, head_dim=20)),
    "qwen3 tied": lambda: Qwen3ForCausalLM(Qwen3Config(
        **LLAMA, head_dim=8, tie_word_embeddings=True, rms_norm_eps=1e-3)),
}
failures = 0


def report(name, what, ok, detail=""):
    global failures
    failures += not ok
    print(f"{'ok ' if ok else 'OFF'} {name}: {what} {detail}")


def some_ids(c):
    n = min(c.max_position_embeddings, 24)
    return torch.randint(0, c.vocab_size, (1, n), generator=torch.Generator().manual_seed(5))


def run(model, ids):
    with torch.no_grad():
        return model(ids).logits[0].numpy()


def compare_logits(build, name, folder, model, tmp):
    """Both compute in fp32 from the same folder."""
    c, ids = model.config, some_ids(model.config)
    want = run(model, ids)
    out = f"{tmp}/logits.f32"
    subprocess.run([f"{build}/logits", "--init", folder, "--tokens",
                    ",".join(map(str, ids[0].tolist())), "--out", out],
                   check=True)
    have = np.fromfile(out, "<f4").reshape(want.shape)
    error = float(np.linalg.norm(have - want) / np.linalg.norm(want))
    report(name, "logits", error < 2e-6 * c.num_hidden_layers, f"relative error {error:.2g}")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def check_folder(build, name, folder):
    with tempfile.TemporaryDirectory() as tmp:
        model = load(folder)
        compare_logits(build, name, folder, model, tmp)
        subprocess.run([f"{build}/convert", "--init", folder, "--out", f"{tmp}/ours"], check=True,
                       stdout=subprocess.DEVNULL)
        again, ids = load(f"{tmp}/ours"), some_ids(model.config)
        a, b = model.state_dict(), again.state_dict()
        bad = [k for k in a if k not in b
               or not torch.equal(a[k], b[k])] + [k for k in b if k not in a]
        report(name, "tensors after conversion", not bad,
               str(bad[:3]) if bad else f"{len(a)} equal")
        same = np.array_equal(run(model, ids), run(again, ids))  # config.json says the same, too
        report(name, "logits of transformers after conversion", same)


def check_stops(build, name, end):
    """A trained model whose every answer is the id `end`: does generate() know, from our folder,
    that texts end there?"""
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(**{**GPT2, "eos_token_id": end, "bos_token_id": 7},
                                       tie_word_embeddings=False))
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight.zero_()
        model.lm_head.weight[end[-1] if isinstance(end, list) else end] = 1
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(f"{tmp}/theirs")
        subprocess.run([f"{build}/convert", "--init", f"{tmp}/theirs", "--out", f"{tmp}/ours"],
                       check=True, stdout=subprocess.DEVNULL)
        said = load(f"{tmp}/ours").generate(torch.tensor([[1, 2, 3]]), max_new_tokens=9,
                                            do_sample=False)
        report(name, "generate() stops at the end of text", said.shape[1] == 4,
               f"after {said.shape[1] - 3} tokens")


def main(build, folders):
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for name, make in MODELS.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for shard in ("1GB", "20KB"):
                torch.manual_seed(3)
                model = make()
                with torch.no_grad():
                    for p in model.parameters():
                        p.add_(torch.randn_like(p) * 0.2)
                with tempfile.TemporaryDirectory() as folder:
                    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
                    kind = "shards" if shard == "20KB" else "one file"
                    check_folder(build, f"{name}, {str(dtype)[6:]}, {kind}", folder)
    check_stops(build, "eos_token_id 5", 5)
    check_stops(build, "eos_token_id [9, 4]", [9, 4])
    for folder in folders:
        check_folder(build, folder, folder)
    print(f"{failures} differences")
    sys.exit(failures > 0)


main(sys.argv[1], sys.argv[2:])
