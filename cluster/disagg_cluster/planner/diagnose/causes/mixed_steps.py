"""Whether steps that mix prompts and tokens are slow while others are not."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import PEER_Z
from disagg_cluster.planner.diagnose.evidence.known import known_median
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.verdict.values import Evidence
from disagg_exporter.model import Role

_LOST_SHARE = 0.2
_LOW, _BEGUN = 0.25, 0.5
# Mixed steps of two engines are slow alike if one level is this part of the other.
_AS_SLOW = 0.6
_MIXED_OVER_PURE, _NOT_SLOW = float(np.log(1.12)), float(np.log(1.08))


def mixing_evidence(view: ModelView, row: int, onset_block: int) -> Evidence | None:
    """Evidence that mixed steps alone are slow."""
    if view.engines[row].role is not Role.MIXED:
        return None
    rows = np.array([row])
    mixed, pure = slowness_by_kind(view, rows, onset_block)
    if np.isfinite(mixed) and np.isfinite(pure):
        if mixed - pure < _MIXED_OVER_PURE:
            # A model that has learned slow mixed steps does not show them; peers may.
            return None if mixed >= _NOT_SLOW else _beside_peers(view, rows, onset_block)
        ratio = float(np.exp(mixed - pure))
        text = f"steps that mix prompts and tokens take {ratio:.2f} times as long as others would"
        return Evidence("mixed_steps", ratio, 1.0, "ratio", text)
    beside = _beside_peers(view, rows, onset_block)
    if beside is not None:
        return beside
    lost = view.recent_over("lost_seconds", "mixing_seconds", rows)[0]
    if not lost >= _LOST_SHARE:
        return None
    text = f"mixing prompts and tokens in one step costs {lost:.0%} of its step time"
    return Evidence("interference", float(lost), 0.0, "ratio", text)


def slowness_by_kind(view: ModelView, rows: Rows, onset_block: int) -> tuple[float, float]:
    """Slowness of mixed steps, and of steps of one kind; NaN where unknown.

    An overloaded engine soon has mixed steps only. The onset block may still hold others, and so do
    peers whose mixed steps became about as slow.
    """
    mixed = level_since(view, rows, "mixed_slowness", onset_block)
    pure = level_since(view, rows, "pure_slowness", onset_block + 1)
    if np.isfinite(pure):
        return mixed, pure
    begun = [_at(view, rows, name, onset_block) for name in ("mixed_slowness", "generation_cost")]
    # The onset block counts only if most of it lies after the onset.
    if np.isfinite(begun).all() and not begun[0] < _BEGUN * mixed:
        return begun[0], begun[1]
    others = np.setdiff1d(view.rows_of(Role.MIXED), rows)
    if len(others) and level_since(view, others, "mixed_slowness", onset_block) >= mixed / 2:
        return mixed, level_since(view, others, "pure_slowness", onset_block)
    return mixed, float("nan")


def as_slow_mixed(view: ModelView, rows: Rows, others: Rows, onset_block: int) -> Flags:
    """Which of some other engines have mixed steps about as slow as these since a block.

    What slows mixed steps, such as the settings of a pool, is often the same at engines that are
    too lightly loaded to delay requests.
    """

    def levels(some: Rows) -> Floats:
        each = (level_since(view, np.array([row]), "mixed_slowness", onset_block) for row in some)
        return np.fromiter(each, dtype=np.float64, count=len(some))

    least = np.maximum(_AS_SLOW * known_median(levels(rows)), _MIXED_OVER_PURE)
    return np.asarray(levels(others) >= least)


def _at(view: ModelView, rows: Rows, name: str, block: int) -> float:
    """The level of one block above the median of those before."""
    levels = view.changed(name, rows).levels[0]
    if block >= len(levels):
        return float("nan")
    return float(levels[block] - known_median(levels[:block]))


def _beside_peers(view: ModelView, rows: Rows, onset_block: int) -> Evidence | None:
    """Evidence that mixed steps take longer than at peers while generation steps do not.

    An overloaded engine soon has none of these: then earlier ones since the onset count, by what
    they take over the fit to all peers. The onset block may begin before it.
    """
    mixed, pure = (view.changed(name, rows) for name in ("mixed_cost", "generation_cost"))
    since = onset_block + 1 if onset_block else 0
    earlier = level_since(view, rows, "generation_cost", since)
    slower = float(pure.apart[0]) if np.isfinite(pure.shift.after[0]) else earlier
    apart = float(mixed.apart[0]) - max(slower, 0.0)
    if mixed.apart_z[0] < PEER_Z or not apart >= _MIXED_OVER_PURE:
        return None
    ratio = float(np.exp(apart))
    text = f"steps that mix prompts and tokens take {ratio:.2f} times as long as at its peers"
    return Evidence("mixed_steps", ratio, 1.0, "ratio", text)


def level_since(view: ModelView, rows: Rows, name: str, onset_block: int) -> float:
    """The lower quartile of a level since a block: a slow GPU is slow in every block."""
    levels = view.changed(name, rows).levels[:, onset_block:]
    known = levels[np.isfinite(levels)]
    return float(np.quantile(known, _LOW)) if len(known) else float("nan")
