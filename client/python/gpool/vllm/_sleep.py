"""Sleep and wake: the worker class for --worker-cls gpool.vllm.Worker.

vLLM's POST /sleep then releases the memory of the weights to other engines, and POST /wake_up maps the weights again.
The KV cache of an idle engine has no memory except for its first chunk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Optional, Tuple

import torch
from vllm.platforms import current_platform

from . import _weights

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Base
else:
    from vllm.v1.worker.gpu_worker import Worker as _Base

if TYPE_CHECKING:
    from ..torch_weights import ModelWeights

logger = logging.getLogger("vllm.gpool")


class Worker(_Base):  # type: ignore[misc, valid-type]
    """A worker of vLLM whose weights are in the pool (--load-format gpool), and which can sleep."""

    def sleep(self, level: int = 1) -> None:
        """Unmap the weights. They stay in the pool until the memory is needed. vLLM's levels 1 and 2 do the same.

        Raises RuntimeError: the weights are in private memory; Busy.
        """
        weights = self._loaded()
        self._finish()
        for each in weights:
            each.sleep()

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Map the weights again, and load them again if their memory was taken.

        Raises NoRoom, and other errors of the pool: the worker remains asleep.
        """
        if tags is not None and "weights" not in tags:
            return
        weights = self._loaded()
        was_asleep = [each for each in weights if each.asleep]
        try:
            for each in was_asleep:
                each.wake()
        except BaseException:
            for each in was_asleep:
                each.sleep()
            raise
        self._finish()

    def discard(self, tags: Tuple[str, ...]) -> None:
        """Do nothing: an idle engine's KV cache has no memory."""

    def _loaded(self) -> List[ModelWeights]:
        if not _weights.loaded:
            raise RuntimeError(
                "gpool: this worker cannot sleep: its weights are not in the pool. Start vLLM with "
                "--load-format gpool; if it was, its log has the reason"
            )
        return _weights.loaded

    def _finish(self) -> None:
        """Wait for the work of this device, and release PyTorch's unused memory."""
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()
            torch.accelerator.empty_cache()
