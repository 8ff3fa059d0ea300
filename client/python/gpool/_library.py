"""Find and load the libraries, and declare their functions."""

from __future__ import annotations

import ctypes
import functools
import os
import types
from pathlib import Path
from typing import Any, Iterator

from . import _abi
from ._checked import checked

try:
    from . import _native
except ImportError as missing:
    raise ImportError(f"{missing}; build gpool._native with make, or install gpool's wheel or package") from missing

# Depends on libgpool, whose functions are found through it. docs/decisions/soname.md explains the number.
_SONAME = f"libgpool_lora.so.{_abi.GPOOL_VERSION_MAJOR}.{_abi.GPOOL_VERSION_MINOR}"

_ARGUMENTS = {
    ("gpool_copy", "from"): "source",
    ("gpool_copy", "bytes"): "nbytes",
    ("gpool_fill", "to"): "address",
    ("gpool_fill", "bytes"): "nbytes",
    ("gpool_kv_host_reserve", "bytes"): "nbytes",
}
"""the names of arguments in this package, where they differ from those of the library"""

_SHORT = frozenset(("gpool_pressure",))
"""functions that only read shared memory, without locks; they keep the global interpreter lock. Another thread could
otherwise take it at each call, and then keep it for longer than the call takes
"""


def _places() -> Iterator[str]:
    """Yield only $GPOOL_LIBRARY, if it is set. Otherwise yield the build of the source tree that contains this file;
    the libraries of a wheel, in the package; the library directory in which the package is installed; and the search
    path of the dynamic linker.
    """
    named = os.environ.get("GPOOL_LIBRARY")
    if named:
        yield named
        return
    here = Path(__file__).resolve()
    for root in here.parents[3:4]:
        if (root / "client" / "gpool.h").exists():
            yield str(root / "build" / "libgpool_lora.so")
    if (here.parent / "lib").is_dir():
        yield str(here.parent / "lib" / _SONAME)
    for folder in here.parents[2:5]:
        if folder.name.startswith("lib"):
            yield str(folder / _SONAME)
    yield _SONAME


def _load() -> ctypes.CDLL:
    tried = []
    for place in _places():
        if "/" in place and not os.path.exists(place):
            tried.append(f"'{place}': no such file")
            continue
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            tried.append(f"'{place}': {error}")
    raise ImportError(
        f"cannot load libgpool_lora: {'; '.join(tried)}; install gpool, or set "
        "GPOOL_LIBRARY to the path of libgpool_lora.so"
    )


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """Return the functions of the library, which refuse integers that C cannot hold. It is loaded at the first call.

    Raises ImportError: it was not found, or has another version.
    """
    loaded = _load()
    short = ctypes.PyDLL(loaded._name, handle=loaded._handle)
    calls = {}
    for name, (result, arguments, names) in _abi.CALLS.items():
        try:
            call = getattr(short if name in _SHORT else loaded, name)
        except AttributeError:
            raise ImportError(
                f"'{loaded._name}' lacks {name}(): it is an older version of libgpool_lora, or another library"
            ) from None
        call.restype, call.argtypes = result, arguments
        calls[name] = checked(call, arguments, [_ARGUMENTS.get((name, each), each) for each in names])
    version = loaded.gpool_version().decode()
    mine = f"{_abi.GPOOL_VERSION_MAJOR}.{_abi.GPOOL_VERSION_MINOR}."
    if not version.startswith(mine):
        raise ImportError(f"libgpool is version {version}, this package is for {mine}x: '{loaded._name}'")
    _native.bind({name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in _abi.CALLS})
    return types.SimpleNamespace(_name=loaded._name, **calls)
