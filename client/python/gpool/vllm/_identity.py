"""The names of published prefixes: a namespace for each kind of KV content, and vLLM's block hashes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List

from ._geometry import Geometry

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

FORMAT = 2
"""version of the names, metadata and layout of published prefixes"""
HEAD_BYTES = 1 << 16
"""bytes at the beginning of each weights file that are hashed; they contain the header of a safetensors file"""


class Namespace:
    """Name the objects of one kind of KV content.

    parts: everything that affects the content. digest: a hash of it, which the metadata of each object repeats.
    """

    def __init__(self, parts: Dict[str, Any]) -> None:
        self.digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest().encode()
        self._hash = self.digest.decode()[:32]

    def name(self, rank: int, block_hash: str) -> str:
        """Return the name of the object of a rank that begins with the block of a hash."""
        return f"vllm-kv/{self._hash}/{rank}/{block_hash}"


def namespace_of(config: VllmConfig, kv: KVCacheConfig, geometry: Geometry, seed: str) -> Namespace:
    """Return the namespace of an engine's KV content. seed: initial value of vLLM's block hashes."""
    import torch
    import vllm

    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    return Namespace(
        {
            "format": FORMAT,
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "model": weights_of(str(model.model), model.revision),
            "commit": str(getattr(model.hf_config, "_commit_hash", None)),
            "config": model.hf_config.to_dict(),
            "dtype": str(model.dtype),
            "quantization": str(model.quantization),
            "max_model_len": model.max_model_len,
            "kv_dtype": cache.cache_dtype,
            "block_size": cache.block_size,
            "hash": [cache.prefix_caching_hash_algo, seed],
            "layout": kv.kv_cache_layout,
            "layers": [list(group.layer_names) for group in kv.kv_cache_groups],
            "specs": [str(group.kv_cache_spec) for group in kv.kv_cache_groups],
            "tensors": [[list(t.layers), t.layer_stride, t.block_stride, t.offset] for t in kv.kv_cache_tensors],
            "page_bytes": geometry.page_bytes,
            "chunk_pages": geometry.chunk_pages,
            "device": str(config.device_config.device_type),
            "ranks": parallel.tensor_parallel_size,
            "seed": model.seed if str(config.load_config.load_format) == "dummy" else None,
        }
    )


def weights_of(model: str, revision: Any) -> List[Any]:
    """Identify a model's weights: in a folder by names, sizes, times and beginnings of the files; else by its name."""
    folder = Path(model)
    if not folder.is_dir():
        return [model, str(revision)]
    found: List[Any] = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".safetensors", ".bin", ".pt", ".gguf", ".json"):
            about = os.stat(path)
            with path.open("rb") as file:
                head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
            found.append([path.name, about.st_size, about.st_mtime_ns, head])
    return found
