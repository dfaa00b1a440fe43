"""Engines that falsely claim to have switched roles, in virtual time: none may be accepted."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from disagg_cluster.lifecycle.reassignment.progress import MoveStep
from disagg_exporter.model import Role
from support.moved_worker import FAULTY_BEHAVIOURS, EngineBehaviour, MovedWorker


def lied(count: int, seed: str) -> dict[str, Any]:
    """Move this many engines that lie and as many honest ones, both with users and without."""
    drawn = random.Random(seed)
    ends: Counter[str] = Counter()
    effect_seconds = []
    for number in range(2 * count):
        lies = number % 2 == 0
        worker = MovedWorker(
            behaviour=drawn.choice(FAULTY_BEHAVIOURS) if lies else EngineBehaviour.CORRECT,
            in_place=drawn.random() < 0.5,
            from_role=drawn.choice((Role.PREFILL, Role.DECODE)),
            work=drawn.random() < 0.7,
            drains_in_seconds=drawn.uniform(0.0, 10.0),
            starts_in_seconds=drawn.uniform(0.5, 40.0),
            router_seconds=drawn.uniform(0.0, 5.0),
            drawn=random.Random(drawn.random()),
            kill_at=drawn.choice((None, *range(1, 12))),
        )
        move = worker.run()
        ends[f"{'lying' if lies else 'honest'}, {move.step}"] += 1
        if not lies and move.effect_seconds is not None:
            effect_seconds.append(move.effect_seconds)
    return {
        "lying_engines": count,
        "false_switched": ends[f"lying, {MoveStep.DONE}"],
        "honest_engines": count,
        "honest_not_proven": count - ends[f"honest, {MoveStep.DONE}"],
        "longest_effect_seconds_virtual": max(effect_seconds),
        "ends": dict(sorted(ends.items())),
    }
