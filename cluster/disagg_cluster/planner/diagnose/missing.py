"""What a diagnosis of a model lacks: engines that answer, waits, and what would explain them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.router_queue import unseen_share
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.telling import silent, telling, untelling
from disagg_cluster.planner.diagnose.verdict.values import EngineKey
from disagg_cluster.planner.diagnose.words.vocabulary import whose_words
from disagg_exporter.model import Role
from disagg_exporter.model.counted import agreeing, counted


def is_wait_unknown(view: ModelView) -> bool:
    """Whether nothing tells how long requests wait: a pool is silent, or no prompt's wait is told.

    Idle engines may have had none to tell yet.
    """
    entries = view.entries
    if any(silent(view, rows).all() for rows in _needed(view)):
        return True
    return not telling(view, entries).any() and bool(untelling(view, entries).any())


def missing_evidence(view: ModelView) -> list[str]:
    """Names the evidence that nothing exports, and what is left out as impossible."""
    found = [
        f"no {_roles(view, rows)} engine of it answers: they start, were ended or are down"
        for rows in _needed(view)
        if silent(view, rows).all()
    ]
    found += _untold(view)
    if view.front_waits() is None:
        found.append(
            "no frontend or router exports users' time to first token: waits before the engines "
            "are unknown"
        )
    elif (unseen := unseen_share(view)) > 0:
        found.append(
            f"engines tell {1 - unseen:.0%} of the first tokens that a frontend or router counts: "
            "waits before the engines are unknown"
        )
    decoders = view.decoders
    if len(decoders) and not np.isfinite(view.blocks("transfers", decoders)).any():
        found.append("no decode engine counts KV transfers: whether they are slow is unknown")
    if not np.isfinite(view.blocks("step_seconds", view.entries)).any():
        found.append("no engine exports the seconds of its steps: whether they are slow is unknown")
    rejected = view.changes.fleet.rejected
    found += [
        f"{counted(count, 'sample')}, of any model, {agreeing(count, 'is', 'are')} left out: {why}"
        for why, count in rejected.items()
    ]
    return found


def _needed(view: ModelView) -> Iterator[Rows]:
    """The pools that requests need: that of their prompts, and decode unless mixed ones are up."""
    mixed = view.rows_of(Role.MIXED)
    if len(view.entries):
        yield view.entries
    if len(view.decoders) and silent(view, mixed).all():
        yield view.decoders


def _untold(view: ModelView) -> Iterator[str]:
    """Names the engines that serve requests and export no times to first token."""
    for role in (Role.PREFILL, Role.MIXED, Role.DECODE):
        rows = view.rows_of(role)
        untold = untelling(view, rows)
        if not untold.any():
            continue
        if (untold | silent(view, rows)).all():
            yield f"no {role.value} engine exports times to first token: waits there are unknown"
        else:
            places = sorted(view.engines[row].place for row in rows[untold])
            whose = whose_words(role, [EngineKey(place[1], place[2]) for place in places])
            yield f"no times to first token of {whose} are exported: waits there are unknown"


def _roles(view: ModelView, rows: Rows) -> str:
    return " or ".join(sorted({view.engines[row].role.value for row in rows}))
