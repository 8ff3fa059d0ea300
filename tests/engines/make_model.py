#!/usr/bin/env python3
"""make_model.py - write a small Llama model with random weights (seeded), whose answers do not repeat at once.

usage: make_model.py FOLDER [SEED]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Dict

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 4, 128, 4, 2, 32, 256, 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}


def weights(seed: int) -> Dict[str, torch.Tensor]:
    """Return the weights. The attention is strong enough that each token of the prompt affects the answer."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, deviation: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * deviation

    made = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN, 1.0),
        "lm_head.weight": normal(VOCABULARY, HIDDEN, 0.1),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows, columns, deviation in (
            ("self_attn.q_proj", HEADS * HEAD, HIDDEN, 0.18),
            ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN, 0.18),
            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN, 0.25),
            ("self_attn.o_proj", HIDDEN, HEADS * HEAD, 0.25),
            ("mlp.gate_proj", INNER, HIDDEN, 0.1),
            ("mlp.up_proj", INNER, HIDDEN, 0.1),
            ("mlp.down_proj", HIDDEN, INNER, 0.1),
        ):
            made[f"{prefix}{name}.weight"] = normal(rows, columns, deviation)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    return made


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights(int(sys.argv[2]) if len(sys.argv) > 2 else 1), folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
