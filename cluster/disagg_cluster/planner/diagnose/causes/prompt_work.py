"""Why prompts wait at the engines that compute them: what has made their work more, or slower.

An engine's load is a product: requests that come to it, tokens of a prompt, the part of them that
is not cached, seconds a token, the host's time beside them. Each is looked at by itself, so what is
too long about a wait can be divided among those that grew, in proportion to the logarithms by
which they did: no order in which to undo them has to be chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.causes.giant_prompts import (
    PERHAPS_GIANTS_Z,
    giants,
)
from disagg_cluster.planner.diagnose.causes.overload import busy_ratio
from disagg_cluster.planner.diagnose.causes.suspicion import (
    LIKELY_Z,
    OWN_Z,
    PEER_Z,
    SINCE_Z,
    SURE_WAIT_Z,
    Adverse,
    adverse,
)
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    gathered_since,
    lognormal,
    longer_beside,
    longer_z,
)
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import shift_of

FACTORS = (
    "slowness",
    "host_gap",
    "computed_share",
    "prompt_length",
    "prompt_spread",
    "share",
    "load",
)
# Against the own past, and against peers, which are never quite alike: as factors.
_LEAST: dict[str, tuple[float, float | None]] = {
    "slowness": (1.08, 1.25),
    "host_gap": (1.05, 1.15),
    "computed_share": (1.1, 1.3),
    "prompt_length": (1.3, 1.4),
    "share": (1.25, 1.35),
}
# The own model is asked once it has told of so many blocks.
_TOLD_BLOCKS = 6
_SLOW_FOR_LONG, _SLOW_WITH_PEERS, _FOR_LONG_Z = 1.2, 1.35, 6.0
_SLOW_BESIDE_GIANTS = 1.4
_GAP_FOR_LONG, _MIXED_APART = 1.25, 1.25
_SPREAD_Z, _LEAST_SPREAD = 3.5, 1.3
_LEAST_LOAD = 1.1
_BUSY, _LEAST_QUEUE = 0.5, 0.5
_LOAD_Z = 4.0
_JAMMED = 0.5  # who serves less of those who come has hardly told of them yet


@dataclass(frozen=True, slots=True, eq=False)
class PromptWork:
    """By how much each factor of the work at some engines has grown, with what each explains.

    `is_longer`: at which engines prompts are longer, also where a few very long ones explain it.
    """

    rows: Rows
    by_factor: dict[str, Adverse]
    is_longer: NDArray[np.bool_]

    def part(self, factor: str) -> Floats:
        """The part of each engine's excess that a factor explains; 0 where nothing has grown."""
        sizes = np.stack([self.by_factor[name].size for name in FACTORS])
        total = sizes.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(total > 0, self.by_factor[factor].size / total, 0.0))

    @property
    def explained(self) -> Floats:
        """Whether anything has grown, by engine."""
        sizes = np.stack([self.by_factor[name].size for name in FACTORS])
        return np.asarray(sizes.sum(axis=0) > 0)


def prompt_work(view: ModelView, waits: Waits) -> PromptWork:
    """Look at the work of the engines where requests wait.

    Where nothing has grown though requests surely wait, less is asked of what may have.
    """
    surely, perhaps = _grown(view, waits, None), _grown(view, waits, waits.z)
    return PromptWork(
        waits.rows,
        {
            name: _or(each, surely.explained, surely.by_factor[name])
            for name, each in perhaps.by_factor.items()
        },
        perhaps.is_longer,
    )


def _or(one: Adverse, use_other: Floats | NDArray[np.bool_], other: Adverse) -> Adverse:
    return Adverse(
        np.where(use_other, other.size, one.size),
        np.where(use_other, other.z, one.z),
        np.where(use_other, other.onset, one.onset).astype(np.intp),
    )


def _grown(view: ModelView, waits: Waits, since_z: Floats | None) -> PromptWork:
    rows = waits.rows
    found = {}
    for name, (least, apart) in _LEAST.items():
        found[name] = adverse(
            view.changed(name, rows),
            float(np.log(least)),
            least_apart=None if apart is None else float(np.log(apart)),
            since=waits.onset,
            since_z=since_z,
        )
    # Prompts that are longer beside those of peers than they were beside them are longer, too.
    beside = adverse(
        view.changed("relative_length", rows),
        float(np.log(_LEAST["prompt_length"][0])),
        since=waits.onset,
        since_z=since_z,
    )
    use = (found["prompt_length"].size == 0) & (beside.size > 0)
    length = _or(found["prompt_length"], use, beside)
    found["prompt_length"] = _gathered(view, waits, length)
    found["slowness"] = _slowness(view, waits, found["slowness"])
    found["share"] = _share(view, waits, found["share"])
    found["host_gap"] = _for_long(view, rows, "host_gap", _GAP_FOR_LONG, found["host_gap"])
    found["prompt_spread"] = _spread(view, waits)
    is_longer = found["prompt_length"].size > 0
    if (found["prompt_spread"].size > 0).any():
        # Which engine the few long ones come to is chance.
        found["prompt_length"] = replace(
            found["prompt_length"], size=np.zeros(len(rows)), z=np.zeros(len(rows))
        )
    found["load"] = _load(view, rows)
    return PromptWork(rows, found, is_longer)


def _gathered(view: ModelView, waits: Waits, longer: Adverse) -> Adverse:
    """Where long prompts have gathered since requests wait there, by how much the mean is longer.

    Who got which needs no past to be told from chance, whatever lengths come. A mean of a few does:
    where lengths are told and long ones have not gathered, what is `longer` is so by chance (z 0).
    It explains a wait unless that is beyond chance; prompts that never end are not told of.
    """
    rows, lengths = waits.rows, view.changes.fleet.prompts.tokens
    if len(rows) < 2 or not len(lengths):
        return longer
    counts, least = view.prompt_counts_apart(rows), _LEAST["prompt_length"][0]
    tokens, count = view.blocks("prompt_tokens", rows), view.blocks("first_tokens", rows)
    spread = lognormal(lengths, counts.sum(axis=(1, 2)))[1] if counts.any() else 0.0
    size, onset = longer.size.copy(), longer.onset.copy()
    ended, came = view.recent("first_tokens", rows), view.recent("arrivals", rows)
    is_told = counts.any(axis=(0, 2)) & ~(ended < _JAMMED * came) & (waits.z < SURE_WAIT_Z)
    z = np.where(is_told, 0.0, longer.z)
    for row in map(int, np.flatnonzero(waits.excess > 0)):
        begin, strength = gathered_since(counts, row, int(waits.onset[row]))
        beside = longer_beside(tokens, count, row, begin)
        if begin == waits.onset[row]:
            by_mean = longer_z(count, row, begin, beside, spread)
            strength = max(strength, min(by_mean, float(longer.z[row])))
        is_sure = waits.z[row] >= SURE_WAIT_Z
        if strength >= (SINCE_Z if is_sure else OWN_Z) and np.exp(beside) >= least:
            # Two that agree are likelier than the weaker of them.
            z[row] = max(strength, LIKELY_Z if is_sure else 0.0, z[row])
            size[row], onset[row] = beside, begin
    return Adverse(size, z, onset)


def _share(view: ModelView, waits: Waits, share: Adverse) -> Adverse:
    rows = waits.rows
    above = np.nan_to_num(view.changed("share", rows).shift.after) >= np.log(_LEAST["share"][0])
    # Who has time makes nobody wait, however much of the requests it gets.
    above &= (busy_ratio(view, rows) >= _BUSY) | (view.recent("waiting", rows) >= _LEAST_QUEUE)
    # Who surely waits, and is given more than others, is likely to wait for that.
    likely = (waits.z >= SURE_WAIT_Z) & (share.size > 0)
    return replace(
        share,
        size=np.where(above, share.size, 0.0),
        z=np.where(likely, np.maximum(share.z, LIKELY_Z), share.z),
    )


def _slowness(view: ModelView, waits: Waits, fitted: Adverse) -> Adverse:
    """Slowness by the engine's own slow-moving model where it tells, else as fitted to its like.

    The own model knows what was computed in each step, the fit only sums over many. It has learned
    for hours, so what it shows need not have begun in this window.
    """
    rows = waits.rows
    changed = view.changed("own_slowness", rows)
    shift = changed.shift
    own = adverse(changed, float(np.log(_LEAST["slowness"][0])), since=waits.onset)
    # Who is no slower than its like is not slow, unless most of them have become slower with it.
    # (0 is who has none like it.)
    least = np.log(_LEAST["slowness"][0])
    has_peers, is_alike = changed.apart != 0, changed.apart < least
    is_shared = (own.z >= OWN_Z) & ((own.size > 0).mean() > 0.5)
    is_none = has_peers & is_alike & ~is_shared
    own = _above_usual(own, shift.after, least)
    # Nobody has learned what steps of lengths cost that never came before.
    is_unlearned = giants(view, rows)[0] >= PERHAPS_GIANTS_Z
    is_unlearned &= np.nan_to_num(shift.after) < np.log(_SLOW_BESIDE_GIANTS)
    is_none |= is_unlearned
    own = replace(own, size=np.where(is_none, 0.0, own.size), z=np.where(is_none, 0.0, own.z))
    # Who tells of some steps and not of these says that they are beyond what it has seen: a fit is
    # no better there.
    known = np.isfinite(changed.levels)
    mixed = adverse(
        view.changed("mixed_cost", rows), np.inf, least_apart=float(np.log(_MIXED_APART))
    )
    fitted = _or(fitted, (mixed.size > 0) & (fitted.size == 0), mixed)
    told = known.sum(axis=1) >= _TOLD_BLOCKS
    for_long = told & (own.size == 0) & (np.nan_to_num(shift.after) >= np.log(_SLOW_FOR_LONG))
    # Where all its like are a little off, it is what they have learned that is; and what has not
    # changed made no wait longer than it was.
    all_slow = np.nan_to_num(shift.after) >= np.log(_SLOW_WITH_PEERS)
    far = (changed.apart_z >= PEER_Z) | (all_slow & (waits.onset >= changed.levels.shape[1]))
    for_long &= (far | ~has_peers) & ~is_unlearned
    size = np.where(for_long, np.nan_to_num(shift.after), own.size)
    z = np.where(for_long, _FOR_LONG_Z, own.z)
    beside = (fitted.onset == 0) & (fitted.size > 0)
    use = told & ~(beside & (size == 0))
    return Adverse(
        np.where(use, size, fitted.size),
        np.where(use, z, fitted.z),
        np.where(use, own.onset, fitted.onset).astype(np.intp),
    )


def _above_usual(own: Adverse, level: Floats, least: float) -> Adverse:
    """Slowness above 0, which is the engine as it has been for hours.

    Whoever was faster than that for a while, and is not any more, has not become slow.
    """
    size = np.clip(np.nan_to_num(level), 0.0, own.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(own.size > 0, own.z * size / own.size, 0.0)
    kept = (size >= least) & (z >= SINCE_Z)
    return Adverse(np.where(kept, size, 0.0), np.where(kept, z, 0.0), own.onset)


def _for_long(view: ModelView, rows: Rows, name: str, least: float, found: Adverse) -> Adverse:
    """What is too much by itself, though it has not changed and peers have it, too."""
    level = np.nan_to_num(view.changed(name, rows).shift.after)
    # What it has changed by may be the smaller part of it.
    use = (found.size < level / 2) & (level >= np.log(least))
    return Adverse(
        np.where(use, level, found.size),
        np.where(use, np.maximum(found.z, _FOR_LONG_Z), found.z),
        np.where(use, 0, found.onset).astype(np.intp),
    )


def _spread(view: ModelView, waits: Waits) -> Adverse:
    """How much more unequal prompts have become, all engines together.

    Very long ones are few, and come to any engine. Where they only go to another engine than
    before, all together they are as they were. Where lengths are told very long ones are counted:
    a mean of squares is whatever the longest few make of it.
    """
    rows = waits.rows
    nothing = np.zeros(len(rows))
    count, total, squares = view.prompts(rows)
    z, onset = giants(view, rows)
    if not len(view.changes.fleet.prompts.tokens):
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.log(squares * count / total**2)
        shift = shift_of(np.where(np.isfinite(levels), levels, np.nan)[None])
        is_wider = shift.change[0] >= np.log(_LEAST_SPREAD)
        z, onset = (float(shift.z[0]) if is_wider else 0.0), int(shift.onset[0])
    if z < _SPREAD_Z:
        return Adverse(nothing, nothing, np.full(len(rows), onset, dtype=np.intp))
    before, after = (
        squares[part].sum() * count[part].sum() / max(total[part].sum(), 1.0) ** 2
        for part in (slice(0, onset), slice(onset, None))
    )
    change = max(float(np.log(after / before)) if before > 0 else 0.0, np.log(_LEAST_SPREAD))
    return Adverse(nothing + change, nothing + z, np.full(len(rows), onset, dtype=np.intp))


def _load(view: ModelView, rows: Rows) -> Adverse:
    """How many more requests come to each engine that is up, in the mean of all."""
    alive = view.blocks("alive", rows)
    arrived = np.nansum(np.where(alive, view.blocks("arrivals", rows), 0.0), axis=0)
    each = arrived / np.maximum(alive.sum(axis=0), 1)
    shift = shift_of(np.log(np.maximum(each, 0.5) / view.block_seconds)[None])
    change = float(shift.change[0]) if shift.z[0] >= _LOAD_Z else 0.0
    size = change if change >= np.log(_LEAST_LOAD) else 0.0
    whole = np.full(len(rows), size)
    return Adverse(
        whole,
        np.where(whole > 0, float(shift.z[0]), 0.0),
        np.full(len(rows), int(shift.onset[0]), dtype=np.intp),
    )
