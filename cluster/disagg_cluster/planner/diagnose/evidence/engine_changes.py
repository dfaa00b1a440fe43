"""Changes of all engines of a fleet: a shift for each observation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.cache_hits import (
    computed_by_chance,
    computed_more_z,
    computed_share,
    hitless_z,
)
from disagg_cluster.planner.diagnose.evidence.fleet import Fleet
from disagg_cluster.planner.diagnose.evidence.known import known_mean, known_sum
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    lengths_by_chance,
    relative_length,
)
from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.evidence.shares import (
    larger_share_z,
    share,
    share_by_chance,
)
from disagg_cluster.planner.diagnose.evidence.shifts import (
    LEAST_AFTER,
    Shift,
    block_bins,
    block_means,
    block_sums,
    log_ratio,
    peer_groups,
    peer_z,
    shift_of,
    standing,
    unless_better,
)
from disagg_cluster.planner.diagnose.evidence.step_costs import (
    fitted_by_kind,
    fitted_slowness,
    has_usual_limit,
    own_slowness,
    sampled_deviation,
    step_seconds,
)
from disagg_exporter.model import Role

# With fewer finished requests a block gives no mean.
_LEAST_REQUESTS = 2.0
_HALF_UP = 0.5
# Nodes measure these on a sample of the steps.
_SAMPLED = ("own_slowness", "pure_slowness", "mixed_slowness")
# The cost of work does not depend on its amount, nor do waits relative to those of peers while
# nothing changes: all blocks since the change count.
_LASTING = {"slowness", "own_slowness", "mixed_cost", "generation_cost", "first_token"}


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """One observation of all engines: against their own past and against peers.

    `apart` is the logarithm of its present value over the median of the peers', `apart_z` the same
    in standard errors; 0 without peers.
    """

    levels: Floats
    shift: Shift
    apart: Floats
    apart_z: Floats


@dataclass(frozen=True, slots=True, eq=False)
class EngineBlocks:
    """Sums and means by engine and block, from which changes are computed.

    `first_tokens` and `first_token_seconds` are of the requests that got their first token (a
    prefill engine's one token counts), `prompt_tokens` those of their prompts.
    """

    seconds: float
    """Of a block."""
    first_tokens: Floats
    first_token_seconds: Floats
    prompt_tokens: Floats
    computed_tokens: Floats
    step_seconds: Floats
    prompt_steps: Floats
    gap_seconds: Floats
    arrivals: Floats
    waiting: Floats
    running: Floats
    deferred: Floats
    preallocating: Floats
    kv_usage: Floats
    preemptions: Floats
    transfers: Floats
    transfer_seconds: Floats
    transfer_bytes: Floats
    transfer_failures: Floats
    foreign_sm: Floats
    lost_seconds: Floats
    mixing_seconds: Floats
    starting_seconds: Floats
    step_tokens: Floats
    steps: Floats
    prompt_stage_seconds: Floats
    prompt_stage_count: Floats
    queue_seconds: Floats
    queue_count: Floats
    alive: Flags
    """Whether an engine was scraped, and up where that is exported."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return int(self.first_tokens.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class EngineChanges:
    """Observations and changes of every engine of a fleet; rows as in `Fleet.engines`."""

    fleet: Fleet
    blocks: EngineBlocks
    by_name: Mapping[str, Changed]

    def of(self, name: str) -> Changed:
        """The change of one observation."""
        return self.by_name[name]


def engine_changes(fleet: Fleet) -> EngineChanges:
    """Compute the changes of all observations of every engine."""
    bins = block_bins(fleet.grid.step_seconds)
    peers = _numbered([(engine.model, engine.likeness) for engine in fleet.engines])
    # Only mixed engines have mixed steps; -1 leaves the others out of the fits.
    is_mixed = np.array([engine.role is Role.MIXED for engine in fleet.engines])
    mixing = np.where(is_mixed, peers, -1)
    blocks = _blocks(fleet, bins)
    served = np.where(blocks.first_tokens >= _LEAST_REQUESTS, blocks.first_tokens, np.nan)
    whole = blocks.step_seconds + np.nan_to_num(blocks.gap_seconds)
    arrived = np.where(blocks.alive, blocks.arrivals, np.nan)
    # Steps of other sizes take other times for the same tokens than those of peers.
    is_like_peers = has_usual_limit(fleet.readings, peers)[:, None]
    fitted = fitted_slowness(fleet.readings, peers, bins)
    levels: dict[str, Floats] = {
        "slowness": np.where(is_like_peers, fitted, np.nan),
        "own_slowness": own_slowness(fleet.readings, bins, "pure", "mixed"),
        "pure_slowness": own_slowness(fleet.readings, bins, "pure"),
        "mixed_slowness": own_slowness(fleet.readings, bins, "mixed"),
        "mixed_cost": fitted_by_kind(fleet.readings, mixing, bins, "mixed"),
        "generation_cost": fitted_by_kind(fleet.readings, mixing, bins, "generation"),
        "host_gap": log_ratio(whole, blocks.step_seconds),
        "computed_share": computed_share(blocks.computed_tokens, blocks.prompt_tokens, served),
        "prompt_length": log_ratio(blocks.prompt_tokens, served),
        "arrivals": np.log(np.maximum(blocks.arrivals, 0.5) / blocks.seconds),
        "first_token": log_ratio(blocks.first_token_seconds, served),
        "step_tokens": log_ratio(blocks.computed_tokens, blocks.prompt_steps),
        "transfer": log_ratio(blocks.transfer_seconds, blocks.transfer_bytes),
        "share": share(arrived, peers),
        "relative_length": relative_length(blocks.prompt_tokens, blocks.first_tokens, peers),
    }
    of_length, beside = lengths_by_chance(fleet.prompts, served, peers)
    least = {
        "prompt_length": of_length,
        "relative_length": beside,
        "share": share_by_chance(arrived, peers),
        "computed_share": computed_by_chance(
            blocks.computed_tokens, blocks.prompt_tokens, served, peers
        ),
        **{name: sampled_deviation(levels[name], peers) for name in _SAMPLED},
    }
    groups = peer_groups(peers)
    changes = _changes(levels, least, groups)
    is_prefill = np.array([engine.role is Role.PREFILL for engine in fleet.engines])
    hits = changes["computed_share"]
    lost_z = hitless_z(fleet.readings, is_prefill, LEAST_AFTER * bins)
    z = np.where(hits.shift.z > 0, np.maximum(lost_z, hits.shift.z), hits.shift.z)
    apart, apart_z = peer_z(hits.shift, groups, usual=unless_better(hits.shift))
    lucky_z = computed_more_z(
        blocks.computed_tokens, blocks.prompt_tokens, blocks.first_tokens, hits.shift.onset, peers
    )
    apart_z = np.where(apart_z > 0, np.clip(lucky_z, 0.0, apart_z), apart_z)
    changes["computed_share"] = Changed(hits.levels, replace(hits.shift, z=z), apart, apart_z)
    given = changes["share"]
    z = larger_share_z(arrived, peers, given.shift.onset)
    z = np.where(given.shift.z > 0, np.maximum(z, given.shift.z), given.shift.z)
    changes["share"] = replace(given, shift=replace(given.shift, z=z))
    return EngineChanges(fleet, blocks, changes)


def _changes(
    levels: Mapping[str, Floats],
    least_deviations: Mapping[str, Floats],
    peers: list[NDArray[np.intp]],
) -> dict[str, Changed]:
    """Compare all observations with their past and their peers, together: that is much faster."""
    kinds, every = len(levels), np.concatenate(list(levels.values()))
    rows = len(every) // kinds
    nothing = np.zeros(rows)
    least = np.concatenate([least_deviations.get(name, nothing) for name in levels])
    groups = [np.concatenate([group + rows * n for n in range(kinds)]) for group in peers]
    shift = shift_of(every, least, kinds)
    apart, z = peer_z(shift, groups)
    stood = standing(every, shift)
    known = np.isfinite(every) & (np.arange(every.shape[1]) >= stood.onset[:, None])
    all_apart, all_z = peer_z(stood, groups, known.sum(axis=1))
    # A long-lasting level is better known, but one that is over explains nothing now.
    use = np.repeat([name in _LASTING for name in levels], rows)
    use &= (all_z > z) & (apart >= all_apart / 2)
    apart, z = np.where(use, all_apart, apart), np.where(use, all_z, z)
    return {
        name: Changed(values, shift.of(own), apart[own], z[own])
        for own, (name, values) in zip(_parts(kinds, rows), levels.items(), strict=True)
    }


def _parts(parts: int, rows: int) -> Iterator[slice]:
    return (slice(rows * part, rows * (part + 1)) for part in range(parts))


def _numbered(keys: list[object]) -> NDArray[np.intp]:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


def _blocks(fleet: Fleet, bins: int) -> EngineBlocks:
    readings = fleet.readings
    total, mean = partial(_total, readings, bins), partial(_mean, readings, bins)
    is_prefill = np.array([engine.role is Role.PREFILL for engine in fleet.engines])[:, None]
    gpu_mean = partial(_of_gpus, fleet, bins)
    prompt_steps = _both(total("context_steps"), total("mixed_steps"))
    return EngineBlocks(
        seconds=bins * fleet.grid.step_seconds,
        first_tokens=np.where(is_prefill, total("entry_count"), total("first_count")),
        first_token_seconds=np.where(is_prefill, total("entry_seconds"), total("first_seconds")),
        prompt_tokens=_both(total("computed_tokens"), total("cached_tokens")),
        computed_tokens=total("computed_tokens"),
        step_seconds=step_seconds(readings, bins),
        prompt_steps=prompt_steps,
        gap_seconds=gpu_mean("gap_seconds"),
        arrivals=total("arrivals"),
        waiting=mean("waiting"),
        running=mean("running"),
        deferred=mean("deferred"),
        preallocating=mean("preallocating"),
        kv_usage=mean("kv_usage"),
        preemptions=total("preemptions"),
        transfers=total("transfers"),
        transfer_seconds=total("transfer_seconds"),
        transfer_bytes=total("transfer_bytes"),
        transfer_failures=total("transfer_failures"),
        foreign_sm=gpu_mean("foreign_sm", worst=True, levels=True),
        lost_seconds=total("loss_seconds") - total("gain_seconds"),
        mixing_seconds=total("mixing_seconds"),
        starting_seconds=gpu_mean("starting_seconds"),
        step_tokens=_both(total("prefill_tokens"), total("decode_tokens")),
        steps=_both(prompt_steps, total("generation_steps")),
        prompt_stage_seconds=total("prefill_seconds"),
        prompt_stage_count=total("prefill_count"),
        queue_seconds=total("queue_seconds"),
        queue_count=total("queue_count"),
        alive=np.isfinite(total("arrivals")) & ~(mean("up") < _HALF_UP),
    )


def _total(readings: Readings, bins: int, name: str) -> Floats:
    return block_sums(readings.of(name), bins)


def _mean(readings: Readings, bins: int, name: str) -> Floats:
    return block_means(readings.of(name), bins)


def _both(one: Floats, other: Floats) -> Floats:
    return known_sum(np.stack([one, other]), axis=0)


def _of_gpus(
    fleet: Fleet, bins: int, name: str, *, worst: bool = False, levels: bool = False
) -> Floats:
    """The mean over each engine's GPUs, or the largest of them; NaN where unknown."""
    found = np.full((len(fleet.engines), fleet.grid.bins // bins), np.nan)
    values = fleet.gpus.of(name)
    if not np.isfinite(values).any():
        return found
    of_gpu = block_means(values, bins) if levels else block_sums(values, bins)
    for row, engine in enumerate(fleet.engines):
        if engine.gpus:
            own = of_gpu[list(engine.gpus)]
            found[row] = _worst(own) if worst else known_mean(own, axis=0)
    return found


def _worst(values: Floats) -> Floats:
    known = np.isfinite(values)
    return np.where(known.any(axis=0), np.where(known, values, -np.inf).max(axis=0), np.nan)
