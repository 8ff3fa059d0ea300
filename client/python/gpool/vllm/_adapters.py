"""LoRA adapters of vLLM in the pool: publish_adapter() for programs that provide adapters, and a resolver for vLLM.

When a request names an unknown model, vLLM calls its resolvers. This resolver first searches the pool, in which any
process of the machine may have published an adapter. Since vLLM reads adapters only from files, the resolver writes the
adapter to the folder $GPOOL_VLLM_ADAPTERS, in which it also searches for adapters that are no longer in the pool. If
this variable is not set, no resolver is registered.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple, Union

from .._errors import Error, NotFound
from .._object import ObjectClass
from .._pool import Pool

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

logger = logging.getLogger("vllm.gpool")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KEY = "gpool.vllm.adapter"
FOLDER, POOL = "GPOOL_VLLM_ADAPTERS", "GPOOL_VLLM_ADAPTER_POOL"
LIMIT, LIMIT_BYTES = "GPOOL_VLLM_ADAPTER_BYTES", 16 << 30
DRAFT = ".draft-"
ATTACH_MS = 10000


def is_name(name: str) -> bool:
    """Return whether a text is a valid name of an adapter, which becomes part of a path."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def publish_adapter(
    pool: Pool, name: str, folder: Union[str, Path], *, keep: bool = False, private: bool = False
) -> None:
    """Publish the PEFT adapter in a folder under `name`; it replaces an earlier adapter of this name.

    keep: never evict the adapter; otherwise it is evicted when its memory is needed. private: refuse other tenants.
    Raises ValueError: the name is invalid, or the adapter is not a LoRA adapter; FileNotFoundError; NoRoom; Error.
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
    """Return the two files of an adapter. Raises NotFound; Error; ValueError, KeyError: the object has no adapter."""
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
    """The files of adapters, each in a folder NAME@HASH of its content. Several processes may use it at once.

    Each process holds a lock on the adapters that it uses, which ends with the process. Adapters without a lock are
    deleted at the start and the end of a process, and when there are more than `limit` bytes. Threads: any.
    """

    def __init__(self, root: Path, limit: int = LIMIT_BYTES) -> None:
        self._root = root
        self._limit = limit
        self._used: Dict[str, int] = {}  # adapter: open folder, with a lock
        self._delete_unused()

    def store(self, name: str, config: bytes, data: bytes) -> Path:
        """Write the files of an adapter unless they exist; return their folder. Raises OSError."""
        digest = hashlib.sha256(len(config).to_bytes(8, "little") + config + data).hexdigest()[:16]
        folder = self._root / f"{name}@{digest}"
        self._root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not folder.is_dir():
                self._make_room(len(config) + len(data))
                draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=self._root))
                try:
                    (draft / CONFIG).write_bytes(config)
                    (draft / WEIGHTS).write_bytes(data)
                    os.rename(draft, folder)
                except OSError:
                    shutil.rmtree(draft, ignore_errors=True)
                    raise
            self._use(name, folder)
        return folder

    def newest(self, name: str) -> Optional[Path]:
        """Return the folder of the most recently used version of an adapter, or None. Raises OSError."""
        if not self._root.is_dir():
            return None
        with self._locked():
            found = [each for each in self._root.glob(f"{name}@*") if each.is_dir()]
            folder = max(found, key=lambda each: each.stat().st_mtime, default=None)
            if folder is not None:
                self._use(name, folder)
        return folder

    def close(self) -> None:
        """End the use of all adapters, and delete those that no other process uses."""
        for held in self._used.values():
            os.close(held)
        self._used.clear()
        self._delete_unused()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def _use(self, name: str, folder: Path) -> None:
        """Begin to use this version of an adapter, and end the use of an earlier version."""
        os.utime(folder)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_SH)
        before, self._used[name] = self._used.get(name), held
        if before is not None:
            os.close(before)

    def _adapters(self) -> List[Path]:
        """Return the folders of all adapters, least recently used first, including incomplete ones."""
        found = [each for each in self._root.iterdir() if "@" in each.name or each.name.startswith(DRAFT)]
        return sorted((each for each in found if each.is_dir()), key=lambda each: each.stat().st_mtime)

    def _make_room(self, wanted: int) -> None:
        """Delete unused adapters until there is room. Raises OSError: the adapters in use leave too little room."""
        sizes = {each: sum(file.stat().st_size for file in each.iterdir()) for each in self._adapters()}
        total = wanted + sum(sizes.values())
        for folder, size in sizes.items():
            if total > self._limit and _delete(folder):
                total -= size
        if total > self._limit:
            raise OSError(
                errno.ENOSPC,
                f"an adapter of {wanted} bytes and those in use exceed {self._limit} bytes; raise ${LIMIT}",
                str(self._root),
            )

    def _delete_unused(self) -> None:
        if self._root.is_dir():
            with self._locked():
                for folder in self._adapters():
                    _delete(folder)


def _delete(folder: Path) -> bool:
    """Delete an adapter unless a process uses it; return whether it was deleted."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
        return True
    except OSError:
        return False
    finally:
        os.close(held)


class Resolver:
    """A resolver of LoRA adapters, with the interface vllm.lora.resolver.LoRAResolver. Threads: any."""

    def __init__(
        self,
        folder: Path,
        pool: Optional[str] = None,
        directory: Optional[str] = None,
        limit: int = LIMIT_BYTES,
    ) -> None:
        """Open or create a folder. limit: maximum size of all adapters in it, in bytes. Raises OSError."""
        self._folder = Folder(folder, limit)
        self._pool_name, self._directory = pool, directory
        self._pool: Optional[Pool] = None

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Optional[LoRARequest]:
        """Return a request with which vLLM loads the adapter; None: this model has no adapter of this name."""
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
                "gpool: adapter '%s' has the type %s and the base model '%s'; this engine needs LORA for '%s'",
                name,
                config.get("peft_type"),
                config.get("base_model_name_or_path"),
                base,
            )
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=name, lora_int_id=1, lora_path=str(folder))  # vLLM replaces the number

    def close(self) -> None:
        """Delete the files of adapters that no other engine uses."""
        self._folder.close()

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
    limit = os.environ.get(LIMIT, str(LIMIT_BYTES))
    if not limit.isdecimal():
        raise ValueError(f"${LIMIT} is '{limit}', and must be a number of bytes")
    made: Any = Resolver(Path(folder).resolve(), os.environ.get(POOL), limit=int(limit))
    atexit.register(made.close)
    LoRAResolver.register(Resolver)
    LoRAResolverRegistry.register_resolver("gpool", made)
