"""Settings of the connector: kv_connector_extra_config of --kv-transfer-config."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Union

from .._pool import Pool
from .._text import counted


class Settings(NamedTuple):
    """List the settings; each is a key of kv_connector_extra_config."""

    pool: Union[str, List[str], None] = None
    """name of the pool; a list: one for each tensor-parallel rank; None: the first pool of the agent"""
    directory: Optional[str] = None
    """folder with the agent's sockets; None: $GPOOL_DIR, or /run/gpool"""
    tenant: Optional[str] = None
    """tenant to join; None: the first that admits this user"""
    name: Optional[str] = None
    """display name in gpool's tools; None: "vllm-" and vLLM's instance id"""
    share: bool = True
    """publish computed prefixes, and use those of other engines"""
    private: bool = False
    """refuse published prefixes and weights to engines of other tenants"""
    attach_timeout_ms: int = 10000
    """longest wait for an agent that has not started"""


_EXPECTED = {bool: "true or false", int: "a number", str: "a text", list: "a list of texts", type(None): "null"}
_KINDS = {
    "pool": (str, list, type(None)),
    "directory": (str, type(None)),
    "tenant": (str, type(None)),
    "name": (str, type(None)),
    "share": (bool,),
    "private": (bool,),
    "attach_timeout_ms": (int,),
}


def settings_of(extra: Mapping[str, Any]) -> Settings:
    """Return the settings of a kv_connector_extra_config.

    Raises ValueError: an unknown key, or a value of another type.
    """
    for key, value in extra.items():
        if key not in _KINDS:
            raise ValueError(
                f"kv_connector_extra_config: unknown key '{key}'; GpoolConnector has {', '.join(sorted(_KINDS))}"
            )
        if not isinstance(value, _KINDS[key]) or (isinstance(value, bool) and bool not in _KINDS[key]):
            expected = " or ".join(_EXPECTED[kind] for kind in _KINDS[key])
            raise ValueError(f"kv_connector_extra_config: '{key}' is {value!r}; it must be {expected}")
    pools = extra.get("pool")
    if isinstance(pools, list) and not all(isinstance(name, str) for name in pools):
        raise ValueError(f"kv_connector_extra_config: 'pool' is {pools!r}; a list must contain names of pools")
    return Settings(**extra)


def pool_name(settings: Settings, rank: int) -> Optional[str]:
    """Return the name of a rank's pool; None: the first. Raises ValueError: the list has fewer names."""
    if not isinstance(settings.pool, list):
        return settings.pool
    if rank >= len(settings.pool):
        raise ValueError(
            f"kv_connector_extra_config: 'pool' lists {counted(len(settings.pool), 'pool')}, and rank {rank} needs "
            "one; give one for each tensor-parallel rank"
        )
    return settings.pool[rank]


def attach(settings: Settings, rank: int, name: str) -> Pool:
    """Attach this process to a rank's pool. Raises gpool.Error."""
    return Pool(
        pool_name(settings, rank),
        directory=settings.directory,
        tenant=settings.tenant,
        name=name,
        timeout_ms=settings.attach_timeout_ms,
    )
