"""A GPU with step times and watts measured on a B200, and its energy counter.

Steps are those of an 8-billion-parameter model's layers: the matrices as multiples, by weights, of
the measured one (n = 6144, k = 4096), and attention. The kernels and their source are in
tests/data/real/b200_kernel_watts.csv.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from disagg_exporter.accounting.devices.energy import CommittedTime, EnergyLedger
from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.timeline import CODES
from disagg_exporter.model import Cell, DeviceReading, Reason, Role, Use

_KERNELS = Path(__file__).parents[1] / "data/real/b200_kernel_watts.csv"
_LAYERS = 32
# Weights of a layer (4096 x (6144 + 4096 + 3 x 14336)) over those of the measured matrix.
_MATRICES = (6144 + 4096 + 3 * 14336) / 6144
IDLE_WATTS = 180.0
"""The power of an idle GPU; not in the tables."""

_COUNTER_MOVES_SECONDS = 0.02
_READ_SECONDS = 0.1


@cache
def kernels() -> dict[tuple[str, int, int], tuple[float, float]]:
    """Return (seconds, watts) by (kernel, tokens, context)."""
    with _KERNELS.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {
            (row["kernel"], int(row["tokens"]), int(row["context"])): (
                float(row["milliseconds"]) / 1e3,
                float(row["watts"]),
            )
            for row in rows
        }


@dataclass(frozen=True, slots=True)
class PoweredStep:
    """A stretch of one use (a step, or idle time), its joules, and the power limit meanwhile."""

    use: Use
    seconds: float
    joules: float
    limit_watts: float | None = None


def step(use: Use, tokens: int, context: int) -> PoweredStep:
    """Return a prefill step of one prompt of `tokens`, or a decode step of as many requests."""
    attention = "context_attention" if use is Use.PREFILL else "generation_attention"
    parts = (
        (_MATRICES, *kernels()["gemm", tokens, 0]),
        (1.0, *kernels()[attention, tokens, context]),
    )
    return PoweredStep(
        use,
        _LAYERS * sum(count * seconds for count, seconds, _ in parts),
        _LAYERS * sum(count * seconds * watts for count, seconds, watts in parts),
    )


def mixed_load(
    prefill_share: float, idle_share: float, seconds: float, seed: int
) -> Iterator[PoweredStep]:
    """Yield the pure steps of an engine that spends given shares of its time in each phase.

    Requests arrive in bursts: prompts of a few sizes, and between them decode steps whose batch and
    context wander.
    """
    draw, so_far, spent = Random(seed), 0.0, dict.fromkeys(Use, 0.0)
    batches, contexts = [8, 16, 32, 64, 128, 256], [128, 512, 1024]
    while so_far < seconds:
        busy = spent[Use.PREFILL] + spent[Use.DECODE]
        if spent[Use.IDLE] < idle_share * so_far:
            length = draw.expovariate(1 / 0.2)
            burst = [PoweredStep(Use.IDLE, length, length * IDLE_WATTS)]
        elif spent[Use.PREFILL] <= prefill_share * busy:
            burst = [
                step(Use.PREFILL, size, size)
                for size in draw.choices([512, 1024, 2048, 4096, 8192], k=draw.randint(1, 6))
            ]
        else:
            size, context = draw.choice(batches), draw.choice(contexts)
            burst = [step(Use.DECODE, size, context)] * draw.randint(1, 40)
        for each in burst:
            spent[each.use] += each.seconds
            so_far += each.seconds
            yield each


def alternating_load(
    seconds: float, each_seconds: float, spread: float, seed: int
) -> Iterator[PoweredStep]:
    """Yield prefill at 1000 W and decode at 400 W in turn, in steps of some 20 ms.

    A turn lasts `each_seconds`, more or less by `spread` of it.
    """
    draw, so_far, turn = Random(seed), 0.0, 0
    while so_far < seconds:
        use, watts = ((Use.PREFILL, 1000.0), (Use.DECODE, 400.0))[turn % 2]
        length = each_seconds * draw.uniform(1 - spread, 1 + spread)
        steps = max(round(length / 0.02), 1)
        for _ in range(steps):
            yield PoweredStep(use, length / steps, length / steps * watts)
        turn, so_far = turn + 1, so_far + length


class MeteredGpu:
    """An `EnergyLedger` that reads the counter of such a GPU, assigned to one engine.

    The counter shows what had been used `lag_seconds` before.
    """

    def __init__(
        self,
        role: Role = Role.MIXED,
        noise: float = 0.0,
        seed: int = 1,
        lag_seconds: float = 0.0,
    ) -> None:
        self.ledger = EnergyLedger()
        self.joules = dict.fromkeys(Use, 0.0)
        self._role, self._noise, self._draw = role, noise, np.random.default_rng(seed)
        self._lag_seconds = lag_seconds
        self.committed_microjoules = 0
        """Between the first reading and the last one that the committed time reaches."""

    def run(
        self,
        steps: Iterator[PoweredStep],
        commit_seconds: float = 5.0,
        since_seconds: float = 0.0,
    ) -> None:
        """Run these steps on the GPU, and commit them with the readings of their time."""
        done = list(steps)
        edges = np.cumsum([since_seconds, *(each.seconds for each in done)])
        factors = 1 + self._noise * self._draw.standard_normal(len(done))
        used = np.array([each.joules for each in done]) * np.maximum(factors, 0.1)
        energy = np.concatenate(([0.0], np.cumsum(used)))
        for each, joules in zip(done, np.diff(energy), strict=True):
            self.joules[each.use] += float(joules)
        readings = np.arange(since_seconds, edges[-1] + _READ_SECONDS, _READ_SECONDS)
        moved = np.floor(readings / _COUNTER_MOVES_SECONDS) * _COUNTER_MOVES_SECONDS
        totals = np.interp(moved - self._lag_seconds, edges, energy)
        first_reading = round(float(totals[0]) * 1e6)
        read, first = 0, 0
        for last in range(1, len(done) + 1):
            if edges[last] - edges[first] < commit_seconds and last < len(done):
                continue
            while read < len(readings) and readings[read] <= edges[last]:
                watts = (totals[read] - totals[read - 1]) / _READ_SECONDS if read else None
                at_ns = round(readings[read] * 1e9)
                now = int(np.searchsorted(edges, readings[read], side="right")) - 1
                reading = DeviceReading(
                    "g",
                    at_ns,
                    energy_joules=totals[read],
                    power_watts=watts,
                    power_limit_watts=done[min(now, len(done) - 1)].limit_watts,
                )
                self.ledger.read(reading, 0)
                read += 1
            self._commit(done[first:last], edges[first : last + 1])
            self.committed_microjoules = round(float(totals[read - 1]) * 1e6) - first_reading
            first = last

    def shares(self) -> tuple[float, float]:
        """Return prefill's share of the energy of both phases: as accounted for, and true."""
        accounted = dict.fromkeys(Use, 0.0)
        for cell, microjoules in (self.ledger.microjoules or {}).items():
            accounted[cell.use] += microjoules
        return tuple(
            used[Use.PREFILL] / (used[Use.PREFILL] + used[Use.DECODE])
            for used in (accounted, self.joules)
        )

    def _commit(self, done: list[PoweredStep], edges: np.ndarray) -> None:
        held = np.array([each.use is not Use.IDLE for each in done])
        prefill = np.array([float(each.use is Use.PREFILL) for each in done])
        reasons = [CODES[Reason.NONE if works else Reason.NO_REQUEST] for works in held]
        intervals = Intervals(
            np.rint(edges * 1e9).astype(np.int64),
            ("e",),
            held[None, :],
            prefill[None, :],
            np.zeros((1, len(done))),
            np.array(reasons),
        )
        unheld = {Reason.NO_REQUEST: Counter({Cell(self._role, Use.IDLE): 1})}
        self.ledger.commit(CommittedTime(intervals, self._role, {"e": ("m", "")}, unheld))
