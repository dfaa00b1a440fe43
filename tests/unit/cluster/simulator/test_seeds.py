"""The same arguments give the same events, to the byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from disagg_cluster.simulator.cluster.spec import BRIEF, Reporting
from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.engine_faults import Crash, LostRecords
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.network_faults import FailingTransfer
from disagg_cluster.simulator.simulation import Simulation
from support.simulations import pair

FAULTS = (
    LostRecords(2.0, 3.0, "decode-1", 0.5),
    FailingTransfer(3.0, 5.0, 0.5),
    Crash(10.0, "decode-0", 1.0),
)


def digest(seed: int, reporting: Reporting | None = None) -> str:
    simulation = Simulation(
        pair(1, 2, noise=Noise(0.1, 0.1), start_seconds=2.0),
        Constant(Mix(4, 800, 40)),
        lengths=Lengths(0.5, 0.5, 0.3),
        faults=FAULTS,
        reporting=reporting,
        seed=seed,
    )
    told = hashlib.sha256()
    for t_ns, event in simulation.events(20 * 10**9):
        told.update(f"{t_ns} {event!r}\n".encode())
    return told.hexdigest()


@pytest.mark.parametrize("reporting", [None, BRIEF], ids=["steps", "runs"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    reporting: Reporting | None,
) -> None:
    assert digest(1, reporting) == digest(1, reporting) != digest(2, reporting)


def test_another_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    script = "from unit_seeds import digest; print(digest(1))"
    path = os.pathsep.join(sys.path)
    number = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    told = subprocess.run(
        [sys.executable, "-c", _LOAD + script],
        env={"PYTHONHASHSEED": number, "PYTHONPATH": path, "SEEDS": __file__},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert told.strip() == digest(1)


_LOAD = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("unit_seeds", os.environ["SEEDS"])
sys.modules["unit_seeds"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""
