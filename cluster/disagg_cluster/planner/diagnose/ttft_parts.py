"""The time to first token of a model's requests by part and engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.router_queue import router_waits
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.known import known_mean
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import EngineKey, EngineParts, TtftPart
from disagg_exporter.model import Role


def ttft_parts(view: ModelView, entry: Waits, decode: Waits) -> Iterator[EngineParts]:
    """The parts that are exported; an unknown part is included in its neighbour."""
    router = router_waits(view)
    if router is not None and np.isfinite(router[-2:]).any():
        role = Role.PREFILL if len(view.decoders) else Role.MIXED
        seconds = max(float(known_mean(router[-2:])), 0.0)
        yield EngineParts(None, role, ((TtftPart.ROUTER, seconds),))
    stage = view.recent_over("prompt_stage_seconds", "prompt_stage_count", entry.rows)
    yield from _parted(view, entry, stage, TtftPart.PREFILL, TtftPart.QUEUE)
    moved = view.recent_over("transfer_seconds", "transfers", decode.rows)
    yield from _parted(view, decode, moved, TtftPart.KV_TRANSFER, TtftPart.FIRST_DECODE)


def _parted(
    view: ModelView, waits: Waits, measured: Floats, part: TtftPart, rest: TtftPart
) -> Iterator[EngineParts]:
    """A wait, split into the part that an engine measures and the rest."""
    order = sorted((part, rest), key=list(TtftPart).index)
    for number, row in enumerate(waits.rows):
        now, usual = float(waits.now[number]), float(waits.usual[number])
        if not np.isfinite(now):
            continue
        known = float(np.nan_to_num(measured[number]))
        observed = {part: min(known, now), rest: max(now - known, 0.0)}
        expected = {part: min(known, usual), rest: max(usual - known, 0.0)}
        place = view.engines[row].place
        yield EngineParts(
            EngineKey(place[1], place[2]),
            view.engines[row].role,
            tuple((each, observed[each]) for each in order),
            tuple((each, expected[each]) for each in order),
        )
