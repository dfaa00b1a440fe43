"""A vLLM plugin for machines with fewer cores than engines: they wait without spinning.

vLLM's processes spin for a second after every message, and NIXL's progress thread spins always.
That is right on a server and starves all processes on two cores: twenty small requests over a NIXL
pair take a minute or two instead of a few seconds. Only the demo's CPU environment contains it.
Results, and the meaning of a step's time, do not change.

For the same reason an engine's first start on a machine does not ask another process what the
demo's model can do: importing vLLM once more takes that process 9 s of a core.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

SPIN_SECONDS = 0.0005
# A reader that stops spinning can miss a message's wake-up; it checks again after this long (vLLM:
# 5 s, which matters little there because it is rarely reached).
RECHECK_MILLISECONDS = 1
NIXL_PROGRESS_MICROSECONDS = 1000

_QUEUES = "vllm.distributed.device_communicators.shm_broadcast"
_NIXL = ("nixl_cu12._api", "nixl_cu13._api")
_REGISTRY = "vllm.model_executor.models.registry"
_MODEL, _MODEL_CLASS = "vllm.model_executor.models.llama", "LlamaForCausalLM"
_MARK = "disagg_calm_waits"


def install() -> None:
    """Make this process wait without spinning; called by vLLM in each of its processes."""
    log = logging.getLogger("vllm.disagg_calm_waits")
    queues = importlib.import_module(_QUEUES)
    if calm_queues(queues):
        log.info("Message queues wait without spinning")
    else:
        log.warning("Message queues are not as in vLLM 0.32 and keep spinning")
    for name in _NIXL:
        try:
            nixl = importlib.import_module(name)
        except ImportError:
            continue
        calm_nixl(nixl)
    know_model(importlib.import_module(_REGISTRY), importlib.import_module(_MODEL))


def know_model(registry: Any, model: Any) -> None:
    """Register the class of the demo's model, of which vLLM otherwise knows the place only.

    A class it examines itself; a place it lets another process import, which on a GPU must not
    initialise CUDA in this one.
    """
    registry.ModelRegistry.register_model(_MODEL_CLASS, getattr(model, _MODEL_CLASS))


def calm_queues(queues: Any) -> bool:
    """Let readers of vLLM's shared-memory queues sleep; return False if its code differs."""
    condition = getattr(queues, "SpinCondition", None)
    if condition is None or not hasattr(queues, "SHM_READER_RECHECK_INTERVAL_MS"):
        return False
    if hasattr(condition, _MARK):
        return True
    initialise = condition.__init__

    def calm_initialise(self: Any, *arguments: Any, **named: Any) -> None:
        initialise(self, *arguments, **named)
        self.busy_loop_s = min(self.busy_loop_s, SPIN_SECONDS)

    condition.__init__ = calm_initialise
    setattr(condition, _MARK, True)
    queues.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MILLISECONDS
    return True


def calm_nixl(nixl: Any) -> None:
    """Let NIXL's progress thread sleep between its polls; it has no setting for that."""
    bindings = nixl.nixlBind
    if hasattr(bindings, _MARK):
        return
    make_agent = bindings.nixlAgent

    def calm_agent(name: str, config: Any) -> Any:
        config.pthrDelay = NIXL_PROGRESS_MICROSECONDS
        return make_agent(name, config)

    bindings.nixlAgent = calm_agent
    setattr(bindings, _MARK, True)
