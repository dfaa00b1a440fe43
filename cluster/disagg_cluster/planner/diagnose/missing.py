"""What a diagnosis of a model lacks: engines that answer, waits, and what would explain them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_AFTER
from disagg_cluster.planner.diagnose.verdict.values import EngineKey
from disagg_cluster.planner.diagnose.words.vocabulary import whose_words
from disagg_exporter.model import Role

_HALF_UP = 0.5


def is_wait_unknown(view: ModelView) -> bool:
    """Whether nothing tells how long requests wait: a pool is silent, or no prompt's wait is told.

    Idle engines may have had none to tell yet.
    """
    entries = view.entries
    if any(_silent(view, rows).all() for rows in _needed(view)):
        return True
    return not _measured(view, entries).any() and bool(_untelling(view, entries).any())


def missing_evidence(view: ModelView) -> list[str]:
    """Names the evidence that is missing because nothing exports it."""
    found = [
        f"no {_roles(view, rows)} engine of it answers: they start, were ended or are down"
        for rows in _needed(view)
        if _silent(view, rows).all()
    ]
    found += _untold(view)
    if view.front_waits() is None:
        found.append(
            "no frontend or router exports users' time to first token: waits before the engines "
            "are unknown"
        )
    decoders = view.decoders
    if len(decoders) and not np.isfinite(view.blocks("transfers", decoders)).any():
        found.append("no decode engine counts KV transfers: whether they are slow is unknown")
    if not np.isfinite(view.blocks("step_seconds", view.entries)).any():
        found.append("no engine exports the seconds of its steps: whether they are slow is unknown")
    return found


def _needed(view: ModelView) -> Iterator[Rows]:
    """The pools that requests need: that of their prompts, and decode unless mixed ones are up."""
    mixed = view.rows_of(Role.MIXED)
    if len(view.entries):
        yield view.entries
    if len(view.decoders) and _silent(view, mixed).all():
        yield view.decoders


def _untold(view: ModelView) -> Iterator[str]:
    """Names the engines that serve requests and export no times to first token."""
    for role in (Role.PREFILL, Role.MIXED, Role.DECODE):
        rows = view.rows_of(role)
        untold = _untelling(view, rows)
        if not untold.any():
            continue
        if (untold | _silent(view, rows)).all():
            yield f"no {role.value} engine exports times to first token: waits there are unknown"
        else:
            places = sorted(view.engines[row].place for row in rows[untold])
            whose = whose_words(role, [EngineKey(place[1], place[2]) for place in places])
            yield f"no times to first token of {whose} are exported: waits there are unknown"


def _untelling(view: ModelView, rows: Rows) -> NDArray[np.bool_]:
    """Which engines have been up for some blocks, not idle, and have told no wait meanwhile."""
    up = view.changes.fleet.readings.of("up")[view.fleet_rows[rows]]
    recent = up[:, -LEAST_AFTER * view.block_bins :]
    is_new = np.isfinite(up).any(axis=1) & ~np.isfinite(recent).all(axis=1)
    is_idle = view.recent("running", rows) + view.recent("waiting", rows) == 0
    told = _measured(view, rows) | _silent(view, rows)
    return np.asarray(~(told | is_new | is_idle))


def _measured(view: ModelView, rows: Rows) -> NDArray[np.bool_]:
    """Which engines have told lately how many first tokens there were, even if none."""
    counts = view.blocks("first_tokens", rows)[:, -LEAST_AFTER:]
    return np.asarray(np.isfinite(counts).any(axis=1))


def _silent(view: ModelView, rows: Rows) -> NDArray[np.bool_]:
    """Which engines do not answer, or are not scraped any longer."""
    grid = view.changes.fleet.grid
    last_seconds = np.array([view.engines[row].last_seconds for row in rows], float)
    is_gone = grid.now_seconds - last_seconds > grid.gap_seconds
    with np.errstate(invalid="ignore"):
        return np.asarray(is_gone | (view.latest("up", rows) < _HALF_UP))


def _roles(view: ModelView, rows: Rows) -> str:
    return " or ".join(sorted({view.engines[row].role.value for row in rows}))
