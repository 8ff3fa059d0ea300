"""LoRA adapters of vLLM in the pool: publish_adapter() for their makers, and vLLM's resolver.

A request for an unknown model name makes vLLM ask its resolvers. Ours looks in the pool, where any process of the
machine may have published an adapter, and then in a folder, in which it keeps the files of the adapters that it has
found: vLLM reads adapters from files only. $GPOOL_VLLM_ADAPTERS names the folder; without it there is no resolver.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

from .._errors import Error, NotFound
from .._object import ObjectClass
from .._pool import Pool

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

logger = logging.getLogger("vllm.gpool")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KEY = "gpool.vllm.adapter"
FOLDER, POOL = "GPOOL_VLLM_ADAPTERS", "GPOOL_VLLM_ADAPTER_POOL"
ATTACH_MS = 10000


def is_name(name: str) -> bool:
    """Return whether a text can name an adapter; it becomes part of a path."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def publish_adapter(
    pool: Pool, name: str, folder: Union[str, Path], *, keep: bool = False, private: bool = False
) -> None:
    """Publish a PEFT folder as adapter `name`, in place of an earlier one.

    keep: the adapter is never evicted; otherwise it is when its memory is needed. private: refuse other tenants.
    Raises ValueError: the name, or the configuration is not one of LoRA; FileNotFoundError; NoRoom; Error.
    """
    if not is_name(name):
        raise ValueError(f"'{name}' cannot name an adapter: it must consist of at most 100 of A-Z a-z 0-9 . _ -")
    config, data = Path(folder, CONFIG).read_bytes(), Path(folder, WEIGHTS).read_bytes()
    if json.loads(config).get("peft_type") != "LORA":
        raise ValueError(f"{Path(folder, CONFIG)}: peft_type is not LORA")
    kind = ObjectClass.IMMUTABLE if keep else ObjectClass.EPHEMERAL
    with pool.create_object(_object_name(name), kind, private=private) as draft:
        draft.alloc(-(-max(len(data), 1) // pool.page_bytes))
        view = draft.view(0, "uint8", len(data))
        if pool.device.host_pointer:
            view.write(data)
        else:
            import torch

            torch.from_dlpack(view).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            torch.cuda.synchronize()
        del view
        draft[KEY] = json.dumps({"config": config.decode(), "bytes": len(data)}).encode()
        draft.publish()


def _object_name(name: str) -> str:
    return f"vllm-lora/{name}"


def _read(pool: Pool, name: str) -> Tuple[bytes, bytes]:
    """Return the two files of an adapter. Raises NotFound; Error; ValueError, KeyError: it is not one of an adapter."""
    with pool.open_object(_object_name(name)) as opened:
        about = json.loads(opened[KEY])
        view = opened.view(0, "uint8", int(about["bytes"]))
        if pool.device.host_pointer:
            data = view.read()
        else:
            import torch

            data = torch.from_dlpack(view).cpu().numpy().tobytes()
        del view
    return str(about["config"]).encode(), data


class Folder:
    """The files of adapters, each in a folder that is named by its content. Several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def store(self, name: str, config: bytes, data: bytes) -> Path:
        """Write an adapter, unless it is there, and return its folder. Raises OSError."""
        digest = hashlib.sha256(len(config).to_bytes(8, "little") + config + data).hexdigest()[:16]
        folder = self._root / f"{name}@{digest}"
        if not folder.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self._root))
            try:
                (draft / CONFIG).write_bytes(config)
                (draft / WEIGHTS).write_bytes(data)
                os.rename(draft, folder)
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                if not folder.is_dir():  # another process has not written it meanwhile
                    raise
        os.utime(folder)
        return folder

    def newest(self, name: str) -> Optional[Path]:
        """Return the folder of an adapter that was used last; None: there is none."""
        found = [each for each in self._root.glob(f"{name}@*") if each.is_dir()]
        return max(found, key=lambda each: each.stat().st_mtime, default=None)


class Resolver:
    """vLLM's interface of resolvers (vllm.lora.resolver.LoRAResolver). Threads: any."""

    def __init__(self, folder: Path, pool: Optional[str] = None, directory: Optional[str] = None) -> None:
        self._folder = Folder(folder)
        self._pool_name, self._directory = pool, directory
        self._pool: Optional[Pool] = None

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Optional[LoRARequest]:
        """Return the request that makes vLLM load an adapter; None: there is none of this name for this model."""
        return await asyncio.to_thread(self._resolve, base_model_name, lora_name)

    def _resolve(self, base: str, name: str) -> Optional[LoRARequest]:
        if not is_name(name):
            return None
        folder = self._from_pool(name) or self._folder.newest(name)
        if folder is None:
            return None
        config = json.loads((folder / CONFIG).read_bytes())
        if config.get("peft_type") != "LORA" or config.get("base_model_name_or_path") != base:
            logger.warning(
                "gpool: adapter '%s' is of type %s for model '%s', and this is '%s'",
                name,
                config.get("peft_type"),
                config.get("base_model_name_or_path"),
                base,
            )
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=name, lora_int_id=1, lora_path=str(folder))  # vLLM replaces the number

    def _from_pool(self, name: str) -> Optional[Path]:
        try:
            if self._pool is None:
                self._pool = Pool(
                    self._pool_name, directory=self._directory, name="vllm-adapters", timeout_ms=ATTACH_MS
                )
            return self._folder.store(name, *_read(self._pool, name))
        except NotFound:
            return None
        except (Error, OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("gpool: adapter '%s' in the pool cannot be used: %r", name, error)
            return None


def register_resolver() -> None:
    """Register the resolver if $GPOOL_VLLM_ADAPTERS names a folder. May be called several times."""
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    folder = os.environ.get(FOLDER)
    if not folder or "gpool" in LoRAResolverRegistry.get_supported_resolvers():
        return
    made: Any = Resolver(Path(folder).resolve(), os.environ.get(POOL))
    LoRAResolver.register(Resolver)
    LoRAResolverRegistry.register_resolver("gpool", made)
