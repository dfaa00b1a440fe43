"""Why prompts wait at the engines that compute them: which factors of their work have grown.

An engine's load is a product: arriving requests, tokens of a prompt, the share of them that is not
cached, seconds a token, the host's time beside them. Each factor is tested separately, and the
excess of a wait is divided among those that grew in proportion to their logarithms, which does not
depend on an order of the factors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.diagnose.causes.giant_prompts import (
    PERHAPS_GIANTS_Z,
    giants,
    wider_lengths,
)
from disagg_cluster.planner.diagnose.causes.mixed_steps import level_since
from disagg_cluster.planner.diagnose.causes.overload import (
    LEAST_SHARE,
    has_only_queue,
    larger_since,
    more_arrivals,
    share_that_delays,
)
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
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import LengthsAt, lengths_at
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats

FACTORS = (
    "slowness",
    "host_gap",
    "computed_share",
    "prompt_length",
    "prompt_spread",
    "share",
    "load",
)
# Least factors of growth against the own past, and against peers, which are never quite alike.
_LEAST: dict[str, tuple[float, float | None]] = {
    "slowness": (1.08, 1.25),
    "host_gap": (1.05, 1.15),
    "computed_share": (1.1, 1.3),
    "prompt_length": (1.3, 1.4),
    "share": (LEAST_SHARE, 1.35),
}
# The engine's own model is used once it covers so many blocks.
_COVERED_BLOCKS = 6
_SLOW_FOR_LONG, _SLOW_WITH_PEERS, _FOR_LONG_Z = 1.2, 1.35, 6.0
_SLOW_BESIDE_GIANTS = 1.4
_GAP_FOR_LONG, _MIXED_APART = 1.25, 1.25
# What is left to explain a wait needs less evidence.
_LEFT_Z, _LEFT_WAIT_Z, _LEFT_SHARE_Z = 1.5, 6.0, 2.0
_JAMMED = 0.5  # an engine that serves less of its arrivals has hardly counted their prompts yet


@dataclass(frozen=True, slots=True, eq=False)
class PromptWork:
    """Growth of each factor of the work at some engines, and the part of the wait it explains.

    `is_longer`: at which engines prompts are longer, even if a few very long ones explain it.
    """

    by_factor: dict[str, Adverse]
    is_longer: Flags

    def part(self, factor: str) -> Floats:
        """The part of each engine's excess wait that a factor explains; 0 without growth."""
        sizes = np.stack([self.by_factor[name].size for name in FACTORS])
        total = sizes.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(total > 0, self.by_factor[factor].size / total, 0.0))

    @property
    def explained(self) -> Floats:
        """Whether any factor has grown, by engine."""
        sizes = np.stack([self.by_factor[name].size for name in FACTORS])
        return np.asarray(sizes.sum(axis=0) > 0)


def prompt_work(view: ModelView, waits: Waits) -> PromptWork:
    """The growth of work at the engines where requests wait.

    Where no factor explains a wait, thresholds are lowered by the significance of the wait.
    """
    surely, perhaps = _grown(view, waits, None), _grown(view, waits, waits.z)
    return PromptWork(
        {
            name: _or(each, surely.explained, surely.by_factor[name])
            for name, each in perhaps.by_factor.items()
        },
        perhaps.is_longer,
    )


def _or(one: Adverse, use_other: Floats | Flags, other: Adverse) -> Adverse:
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
    # Prompts also count as longer if they became so relative to those of peers.
    beside = adverse(
        view.changed("relative_length", rows),
        float(np.log(_LEAST["prompt_length"][0])),
        since=waits.onset,
        since_z=since_z,
    )
    use = (found["prompt_length"].size == 0) & (beside.size > 0)
    length = _or(found["prompt_length"], use, beside)
    found["prompt_length"] = _gathered(view, waits, length)
    found["slowness"] = own_or_fitted_slowness(view, waits, found["slowness"])
    found["share"] = share_that_delays(view, rows, found["share"], waits.z)
    found["host_gap"] = _long_gap(view, rows, found["host_gap"])
    found["prompt_spread"] = wider_lengths(view, rows, since_z)
    is_longer = found["prompt_length"].size > 0
    if (found["prompt_spread"].size > 0).any():
        # Which engine gets the few very long ones is chance.
        found["prompt_length"] = replace(
            found["prompt_length"], size=np.zeros(len(rows)), z=np.zeros(len(rows))
        )
    found["load"] = more_arrivals(view, rows)
    found["prompt_length"] = explained_by_lengths(view, waits, found)
    found["share"] = explained_by_share(view, waits, found)
    return PromptWork(found, is_longer)


def _gathered(view: ModelView, waits: Waits, longer: Adverse) -> Adverse:
    """`longer`, corrected by whether long prompts have concentrated on each engine.

    Whether they have can be tested without a past, at any lengths. A mean of few cannot:
    where a histogram shows no concentration, `longer` counts as chance (z 0), and still explains a
    wait, unless the wait is significant. Jammed engines are exempt: unfinished prompts are not in
    the histogram.
    """
    rows, counts = waits.rows, _counts_apart(view, waits.rows)
    if counts is None:
        return longer
    least = np.log(_LEAST["prompt_length"][0])
    size, onset = longer.size.copy(), longer.onset.copy()
    ended, arrived = view.recent("first_tokens", rows), view.recent("arrivals", rows)
    is_counted = counts.any(axis=(0, 2)) & ~(ended < _JAMMED * arrived) & (waits.z < SURE_WAIT_Z)
    z = np.where(is_counted, 0.0, longer.z)
    alone = has_only_queue(view, rows, waits.now)
    for row in map(int, np.flatnonzero(waits.excess > 0)):
        at = _lengths_at(view, waits, counts, row)
        strength = at.gathered_z
        if at.onset == waits.onset[row]:
            strength = max(strength, min(at.mean_z, float(longer.z[row])))
        is_sure = waits.z[row] >= SURE_WAIT_Z
        if strength >= (SINCE_Z if is_sure else OWN_Z) and at.longer >= least:
            # Two that agree are stronger evidence than the weaker of them; a likely number needs
            # no second look beside a sure wait, as its noise is not estimated.
            is_known = alone[row] or at.gathered_z >= LIKELY_Z
            agreed = (SURE_WAIT_Z if is_known else LIKELY_Z) if is_sure else 0.0
            z[row], size[row], onset[row] = max(strength, agreed, z[row]), at.longer, at.onset
    return Adverse(size, z, onset)


def explained_by_lengths(view: ModelView, waits: Waits, found: dict[str, Adverse]) -> Adverse:
    """The growth of prompt lengths, also where they are all that is left to explain a queue.

    Where one engine has a lasting queue, its peers have none, and no other factor has grown there,
    its prompts are longer: little evidence is needed of it.
    """
    rows, longer = waits.rows, found["prompt_length"]
    left = has_only_queue(view, rows, waits.now) & (waits.z >= OWN_Z)
    for name, each in found.items():
        left &= (name == "prompt_length") | (each.size <= 0)
    counts = _counts_apart(view, rows) if left.any() else None
    if counts is None:
        return longer
    row = int(left.argmax())
    at = _lengths_at(view, waits, counts, row)
    if max(at.gathered_z, at.mean_z) < _LEFT_Z or at.longer < np.log(_LEAST["prompt_length"][0]):
        return longer
    size, z, onset = longer.size.copy(), longer.z.copy(), longer.onset.copy()
    z[row], size[row], onset[row] = max(z[row], LIKELY_Z), max(size[row], at.longer), at.onset
    return Adverse(size, z, onset)


def explained_by_share(view: ModelView, waits: Waits, found: dict[str, Adverse]) -> Adverse:
    """The growth of shares, also where it is all that is left to explain a sure wait.

    The wait tells since when the share is larger, so that no onset is chosen.
    """
    left = (waits.z >= _LEFT_WAIT_Z) & (waits.excess > 0)
    for each in found.values():
        left &= each.size <= 0
    if not left.any():
        return found["share"]
    larger = larger_since(view, waits.rows, waits.onset)
    left &= larger.z >= _LEFT_SHARE_Z
    return _or(found["share"], left, replace(larger, z=np.maximum(larger.z, LIKELY_Z)))


def _counts_apart(view: ModelView, rows: Rows) -> Floats | None:
    """Number of prompts by length, engine and block; None for a single engine or if unknown."""
    if len(rows) < 2 or not len(view.changes.fleet.prompts.tokens):
        return None
    return view.prompt_counts_apart(rows)


def _lengths_at(view: ModelView, waits: Waits, counts: Floats, row: int) -> LengthsAt:
    tokens, count = (view.blocks(name, waits.rows) for name in ("prompt_tokens", "first_tokens"))
    lengths = view.changes.fleet.prompts.tokens
    return lengths_at(lengths, counts, (tokens, count), row, int(waits.onset[row]))


def own_or_fitted_slowness(view: ModelView, waits: Waits, fitted: Adverse) -> Adverse:
    """Slowness by the engine's own slow-moving model where exported, else by the fit to its peers.

    The own model knows the work of each step, the fit only sums over many. It has learned for
    hours, so a slowness that it shows may have begun before this window.
    """
    rows = waits.rows
    changed = view.changed("own_slowness", rows)
    shift = changed.shift
    own = adverse(changed, float(np.log(_LEAST["slowness"][0])), since=waits.onset)
    # An engine no slower than its peers is not slow, unless most have become slower with it.
    # (`apart` is 0 without peers.)
    least = np.log(_LEAST["slowness"][0])
    has_peers, is_alike = changed.apart != 0, changed.apart < least
    is_shared = (own.z >= OWN_Z) & ((own.size > 0).mean() > 0.5)
    is_none = has_peers & is_alike & ~is_shared
    own = _above_usual(own, shift.after, least)
    # The model has not learned what prompts of new lengths cost.
    is_unlearned = giants(view, rows)[0] >= PERHAPS_GIANTS_Z
    is_unlearned &= np.nan_to_num(shift.after) < np.log(_SLOW_BESIDE_GIANTS)
    is_none |= is_unlearned
    own = replace(own, size=np.where(is_none, 0.0, own.size), z=np.where(is_none, 0.0, own.z))
    # A model that covers some steps but not the present ones has not met such before: the fit is no
    # better there.
    known = np.isfinite(changed.levels)
    mixed = adverse(
        view.changed("mixed_cost", rows), np.inf, least_apart=float(np.log(_MIXED_APART))
    )
    fitted = _or(fitted, (mixed.size > 0) & (fitted.size == 0), mixed)
    is_covered = known.sum(axis=1) >= _COVERED_BLOCKS
    for_long = is_covered & (own.size == 0) & (np.nan_to_num(shift.after) >= np.log(_SLOW_FOR_LONG))
    # If all peers are slightly slow, their models are off; and a slowness that has not changed
    # explains no increase of waits.
    stood = [level_since(view, np.array([row]), "own_slowness", 0) for row in rows]
    stood_slow = np.nan_to_num(np.array(stood)) >= np.log(_SLOW_WITH_PEERS)
    far = (changed.apart_z >= PEER_Z) | (stood_slow & (waits.onset >= changed.levels.shape[1]))
    for_long &= (far | ~has_peers) & ~is_unlearned
    size = np.where(for_long, np.nan_to_num(shift.after), own.size)
    z = np.where(for_long, _FOR_LONG_Z, own.z)
    beside = (fitted.onset == 0) & (fitted.size > 0)
    use = is_covered & ~(beside & (size == 0))
    return Adverse(
        np.where(use, size, fitted.size),
        np.where(use, z, fitted.z),
        np.where(use, own.onset, fitted.onset).astype(np.intp),
    )


def _above_usual(own: Adverse, level: Floats, least: float) -> Adverse:
    """`own`, limited to the level above 0, which is the engine as it has been for hours.

    An engine that was faster for a while and no longer is has not become slow.
    """
    size = np.clip(np.nan_to_num(level), 0.0, own.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(own.size > 0, own.z * size / own.size, 0.0)
    kept = (size >= least) & (z >= SINCE_Z)
    return Adverse(np.where(kept, size, 0.0), np.where(kept, z, 0.0), own.onset)


def _long_gap(view: ModelView, rows: Rows, found: Adverse) -> Adverse:
    """A host gap too long by itself, even if unchanged and shared by peers; else `found`."""
    level = np.nan_to_num(view.changed("host_gap", rows).shift.after)
    # A change may be the smaller part of the level.
    use = (found.size < level / 2) & (level >= np.log(_GAP_FOR_LONG))
    return Adverse(
        np.where(use, level, found.size),
        np.where(use, np.maximum(found.z, _FOR_LONG_Z), found.z),
        np.where(use, 0, found.onset).astype(np.intp),
    )
