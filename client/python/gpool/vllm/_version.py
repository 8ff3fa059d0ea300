"""The version of vLLM for which this package was written and tested."""

from __future__ import annotations

import re

TESTED = "0.32"
"""major and minor version of vLLM"""


def mismatch() -> str:
    """Return the reason why the installed vLLM cannot be used, or "". Raises ImportError: vLLM is not installed."""
    import vllm

    found = re.match(r"\d+\.\d+(?=\.|\+|$)", vllm.__version__)
    if found and found[0] == TESTED:
        return ""
    return (
        f"gpool.vllm works with vLLM {TESTED}, and this is vLLM {vllm.__version__}: install vllm=={TESTED}.*, "
        "or a version of gpool for this vLLM"
    )


def check_version() -> None:
    """Raises ImportError: vLLM is missing, or has another minor version."""
    why = mismatch()
    if why:
        raise ImportError(why)
