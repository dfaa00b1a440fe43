"""The plugin that calms vLLM on few cores, over stand-ins for what it changes."""

from __future__ import annotations

from types import SimpleNamespace

from disagg_cluster.demo.real_vllm.calm_waits.disagg_calm_waits import (
    NIXL_PROGRESS_MICROSECONDS,
    RECHECK_MILLISECONDS,
    SPIN_SECONDS,
    calm_nixl,
    calm_queues,
    know_model,
)


def _queues() -> SimpleNamespace:
    class SpinCondition:
        def __init__(self, is_reader: bool, address: str, busy_loop_s: float = 1) -> None:
            self.address = address
            self.busy_loop_s = busy_loop_s if is_reader else 0

    return SimpleNamespace(SpinCondition=SpinCondition, SHM_READER_RECHECK_INTERVAL_MS=5000)


def test_readers_stop_spinning_and_recheck_soon() -> None:
    queues = _queues()

    assert calm_queues(queues) is True
    assert calm_queues(queues) is True  # vLLM may load a plugin more than once

    reader = queues.SpinCondition(True, address="ipc://x")
    assert (reader.address, reader.busy_loop_s) == ("ipc://x", SPIN_SECONDS)
    assert queues.SpinCondition(False, "ipc://x").busy_loop_s == 0
    assert queues.SHM_READER_RECHECK_INTERVAL_MS == RECHECK_MILLISECONDS


def test_queues_of_another_vllm_are_left_as_they_are() -> None:
    without_recheck = _queues()
    del without_recheck.SHM_READER_RECHECK_INTERVAL_MS

    assert calm_queues(without_recheck) is False
    assert calm_queues(SimpleNamespace()) is False

    assert without_recheck.SpinCondition(True, "ipc://x").busy_loop_s == 1


def test_the_nixl_progress_thread_sleeps() -> None:
    made: list[tuple[str, int]] = []
    bindings = SimpleNamespace(nixlAgent=lambda name, config: made.append((name, config.pthrDelay)))
    nixl = SimpleNamespace(nixlBind=bindings)

    calm_nixl(nixl)
    calm_nixl(nixl)
    bindings.nixlAgent("a", SimpleNamespace(pthrDelay=0))

    assert made == [("a", NIXL_PROGRESS_MICROSECONDS)]


def test_the_class_of_the_demos_model_is_registered_itself() -> None:
    """A class, not a place, which vLLM would have another process import."""
    registered: dict[str, object] = {}
    registry = SimpleNamespace(ModelRegistry=SimpleNamespace(register_model=registered.__setitem__))

    know_model(registry, model := SimpleNamespace(LlamaForCausalLM=object()))

    assert registered == {"LlamaForCausalLM": model.LlamaForCausalLM}
