"""What was learned from made-up engines, and a daemon's learners with one engine."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from functools import cache

from disagg_cluster.continuity.learned_models import EngineIdentities, LearnedModels, Learners
from disagg_cluster.continuity.learned_text import EngineLearned, LearnedIdentity, StoredEntry
from disagg_cluster.telemetry.source_selection import SourceCandidate, SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.attribution.pages.prefill_shares import Counts, LearnedShares, PhaseShares
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.capacity.curves.curve import LearnedClass, LearnedLimits
from disagg_exporter.model import Assignment, Device, EnginePage, EngineState, EngineStatus, Role


@cache
def costs_of(steps: int, *, spread: bool = False) -> LearnedCost:
    """Return the costs learned from a number of steps, optionally `spread` over kinds of work."""
    cost, rng = StepCost(), random.Random(1)
    for _ in range(steps):
        most = 14 if spread else 5
        prefill = rng.choice([0.0, 2.0 ** rng.uniform(0, most)])
        decode = float(round(2 ** rng.uniform(0, most / 2)))
        work = StepWork(prefill, prefill * 2 ** rng.uniform(0, most), decode, decode * 100)
        cost.learn(work, 0.005 + 1e-5 * (prefill + decode))
    return cost.save()


def _shares() -> LearnedShares:
    shares = PhaseShares()
    for n in range(30):
        shares.learn(Counts(100 * n, 50, 20.0, 9.0), 0.1 + n / 100, 1.0)
    saved = shares.save()
    assert saved is not None
    return saved


SHARES = _shares()

NOW = 1_790_000_000.0
NOW_NS = 10**14
DEVICES = tuple(Device(f"GPU-{n}", n, "NVIDIA H200", f"nvidia{n}") for n in range(3))
LIMITS = LearnedLimits(decode=(LearnedClass(0, 0, ((1.0, 0.01, False),) * 20),))
LEARNED = EngineLearned(((0, costs_of(400)),), LIMITS, SHARES)
STATUS = EngineStatus(
    engine="mixed-0",
    role=Role.MIXED,
    kind="vllm",
    version="0.32.0",
    model_name="m",
    devices=("GPU-0",),
    state=EngineState.READY,
    up=True,
    source="config",
    confidence="certain",
    pid=7,
)
FOUND = replace(STATUS, engine="found-0", page=EnginePage("vllm", NOW_NS), source="page")


class LearningNode:
    """A daemon's learners with one engine, whose status may change."""

    def __init__(self, stored: dict[LearnedIdentity, StoredEntry] | None = None) -> None:
        self.command = "digest"
        self.arguments: tuple[str, ...] = ("serve", "m")
        self.start_ticks = 1
        ledger = Ledger()
        self.learners = Learners(ledger, CapacityModel(0.05), SourceSelection(ledger))
        identities = EngineIdentities(
            lambda: DEVICES,
            {"mixed-0": lambda: self.command},
            lambda _pid: self.arguments,
            lambda _pid: self.start_ticks,
        )
        self.models = LearnedModels(self.learners, identities.of, logging.getLogger("test"))
        self.models.begin(stored or {})

    def see(self, status: EngineStatus, now_ns: int = NOW_NS, now: float = NOW) -> LearningNode:
        """Run one second of a daemon."""
        for device in DEVICES:
            self.learners.ledger.add_device(device, 0)
        self.learners.ledger.assign(
            Assignment(
                status.engine,
                status.role,
                status.devices,
                status.state,
                now_ns,
                (),
                status.model_name,
            )
        )
        subject = SourceCandidate(status.engine, status.role, status.devices, 7, None, None, {})
        self.learners.sourcing.select([subject], now_ns)
        self.learners.capacity_model.advance([status], now_ns)
        self.models.update([status], now_ns, now)
        return self

    def learned(self, status: EngineStatus = STATUS) -> EngineLearned:
        return self.learners.save(status.engine, NOW_NS)


def left_by(status: EngineStatus = STATUS, now: float = NOW) -> dict[LearnedIdentity, StoredEntry]:
    """Return what a daemon leaves that has learned `LEARNED` from its engine."""
    before = LearningNode().see(status)
    before.learners.restore(status.engine, LEARNED, NOW_NS)
    assert before.models.keep_all(NOW_NS, now) == {}
    return before.models._stored
