"""Begins and ends the faults of a simulation at their times."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from disagg_cluster.simulator.cluster.spec import SpecError
from disagg_cluster.simulator.fault import Fault, FaultTargets


def schedule_faults(faults: Iterable[Fault], targets: FaultTargets) -> None:
    """Schedule faults; raises `SpecError` for an unknown engine or GPU.

    A fault of a process ends with it: the next process is well.
    """
    for fault in faults:
        engine, gpu = getattr(fault, "engine", None), getattr(fault, "gpu", None)
        if engine is not None and engine not in targets.servers:
            raise SpecError(f"a fault of {engine}, which is no engine")
        if gpu is not None and targets.server_of(gpu) is None:
            raise SpecError(f"a fault of {gpu}, on which no engine works")
        targets.queue.after(fault.at_seconds, partial(fault.begin, targets))
        if fault.end_seconds is not None:
            targets.queue.after(fault.end_seconds, partial(fault.end, targets))
