#!/usr/bin/env python3
"""make_model.py - write a small Llama model with random weights (seeded), whose answers do not repeat at once.

usage: make_model.py [--large | --seed N] FOLDER      --large: of 100 MB and more, with 8 times the dimensions below
       make_model.py --adapter SEED MODEL FOLDER      write a LoRA adapter for the model in folder MODEL

The tokens of its tokenizer are the words w3 to w511. Tokens 0 to 2 are <unk>, <s> and </s>.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Dict

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

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


def weights(seed: int, scale: int) -> Dict[str, torch.Tensor]:
    """Return the weights. The attention is strong enough that each token of the prompt affects the answer."""
    generator = torch.Generator().manual_seed(seed)
    hidden, heads, inner = HIDDEN * scale, HEADS * scale, INNER * scale

    def normal(rows: int, columns: int, deviation: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * deviation / scale**0.5

    made = {
        "model.embed_tokens.weight": normal(VOCABULARY, hidden, scale**0.5),
        "lm_head.weight": normal(VOCABULARY, hidden, 0.1),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows, columns, deviation in (
            ("self_attn.q_proj", heads * HEAD, hidden, 0.18),
            ("self_attn.k_proj", KV_HEADS * HEAD, hidden, 0.18),
            ("self_attn.v_proj", KV_HEADS * HEAD, hidden, 0.25),
            ("self_attn.o_proj", hidden, heads * HEAD, 0.25),
            ("mlp.gate_proj", inner, hidden, 0.1),
            ("mlp.up_proj", inner, hidden, 0.1),
            ("mlp.down_proj", hidden, inner, 0.1),
        ):
            made[f"{prefix}{name}.weight"] = normal(rows, columns, deviation)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}{name}.weight"] = torch.ones(hidden)
    return made


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer for words that are separated by spaces."""
    special = ("<unk>", "<s>", "</s>")  # a tokenizer finds them within words, too, so no word begins with one
    words = [*special, *(f"w{token}" for token in range(len(special), VOCABULARY))]
    tokenizer = Tokenizer(WordLevel({word: token for token, word in enumerate(words)}, unk_token=special[0]))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("unk_token", "bos_token", "eos_token"), special))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def write_adapter(seed: int, model: Path, folder: Path) -> None:
    """Write an adapter of rank 8 for the attention of a model, in PEFT's format."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for layer in range(LAYERS):
        for name, rows in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            made[f"{path}.lora_A.weight"] = torch.randn(8, HIDDEN, generator=generator)
            made[f"{path}.lora_B.weight"] = torch.randn(rows, 8, generator=generator) * 0.3
    save_file(made, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(model),
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    if sys.argv[1] == "--adapter":
        write_adapter(int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
        return
    folder, scale = Path(sys.argv[-1]), 8 if sys.argv[1] == "--large" else 1
    seed = int(sys.argv[2]) if sys.argv[1] == "--seed" else 1
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "hidden_size": HIDDEN * scale, "intermediate_size": INNER * scale}
    config["num_attention_heads"] = HEADS * scale
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)
    save_file(weights(seed, scale), folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
