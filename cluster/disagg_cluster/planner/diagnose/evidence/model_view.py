"""One model's engines, with the observations and changes of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.evidence.engine_changes import (
    Changed,
    EngineBlocks,
    EngineChanges,
)
from disagg_cluster.planner.diagnose.evidence.fleet import FleetEngine
from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.evidence.shifts import (
    block_means,
    block_sums,
    recent_mean,
    recent_ratio,
)
from disagg_cluster.planner.diagnose.evidence.users import ModelPlace
from disagg_cluster.planner.history.load_series import quotient
from disagg_exporter.model import Role

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class ModelView:
    """A model's part of a fleet. Rows count its own engines, from 0."""

    place: ModelPlace
    targets: Targets
    changes: EngineChanges
    fleet_rows: Rows
    engines: tuple[FleetEngine, ...]

    def rows_of(self, *roles: Role) -> Rows:
        """The engines with one of these roles."""
        return np.array(
            [row for row, engine in enumerate(self.engines) if engine.role in roles], dtype=np.intp
        )

    @property
    def entries(self) -> Rows:
        """The engines that compute prompts, where requests enter."""
        return self.rows_of(Role.PREFILL, Role.MIXED)

    @property
    def decoders(self) -> Rows:
        """The decode engines, which generate tokens of prompts computed elsewhere."""
        return self.rows_of(Role.DECODE)

    def blocks(self, name: str, rows: Rows) -> Floats:
        """A field of `EngineBlocks` for some of the engines."""
        values: Floats = getattr(self._blocks, name)
        return values[self.fleet_rows[rows]]

    @property
    def _blocks(self) -> EngineBlocks:
        return self.changes.blocks

    @property
    def block_seconds(self) -> float:
        """Length of a block."""
        return self._blocks.seconds

    def changed(self, name: str, rows: Rows) -> Changed:
        """The change of one observation, for some of the engines."""
        whole, chosen = self.changes.of(name), self.fleet_rows[rows]
        return Changed(
            whole.levels[chosen],
            whole.shift.of(chosen),
            whole.apart[chosen],
            whole.apart_z[chosen],
        )

    def latest(self, name: str, rows: Rows) -> Floats:
        """The newest known value of a gauge, for some of the engines; NaN without any."""
        return self._known_value(name, rows, -1)

    def first(self, name: str, rows: Rows) -> Floats:
        """The oldest known value of a gauge, for some of the engines; NaN without any."""
        return self._known_value(name, rows, 0)

    def _known_value(self, name: str, rows: Rows, number: int) -> Floats:
        values = self.changes.fleet.readings.of(name)[self.fleet_rows[rows]]
        known = [row[np.isfinite(row)] for row in values]
        return np.array([row[number] if len(row) else np.nan for row in known], float)

    def queued_seconds(self, rows: Rows) -> Floats:
        """Time since each queue was last seen empty, or since it is observed: none waits longer."""
        waiting = self.changes.fleet.readings.of("waiting")[self.fleet_rows[rows]]
        is_unseen = np.isfinite(waiting).cumsum(axis=1) == 0
        numbers = np.arange(waiting.shape[1])
        last_empty = np.where((waiting < 1) | is_unseen, numbers, -1).max(axis=1)
        scrapes = len(numbers) - 1 - last_empty
        return np.asarray(scrapes * self.changes.fleet.grid.step_seconds)

    def limit_onset(self, rows: Rows) -> Rows:
        """The block in which a limit of each engine was changed; the number of blocks if none was.

        The limits are those of tokens in a step, of running requests, and of tokens in the cache.
        """
        blocks, bins = self._blocks.blocks, self.changes.fleet.grid.bins
        per_block = self.block_bins
        onset = np.full(len(rows), blocks, dtype=np.intp)
        for name in ("step_limit_tokens", "batch_limit", "kv_tokens"):
            values = self.changes.fleet.readings.of(name)[self.fleet_rows[rows]]
            known = np.isfinite(values)
            newest = values[np.arange(len(rows)), bins - 1 - np.argmax(known[:, ::-1], axis=1)]
            was_other = known & (values != newest[:, None])
            if was_other.any():
                since = bins - np.argmax(was_other[:, ::-1], axis=1) - (bins - blocks * per_block)
                changed = np.where(was_other.any(axis=1), np.maximum(since, 0) // per_block, blocks)
                onset = np.minimum(onset, changed)
        return onset

    def prompts(self, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """Number of prompts, sum of their lengths and of the squares, by block, over all `rows`.

        From histograms where engines have them. Else from sums alone: the tokens of n prompts have
        n times the mean and n times the variance of one.
        """
        chosen = self.fleet_rows[rows]
        bins = self.block_bins
        tokens_of, by_length = self.prompt_counts(rows)
        if by_length.any():
            lengths = tokens_of[:, None]
            return (
                by_length.sum(axis=0),
                (by_length * lengths).sum(axis=0),
                (by_length * lengths**2).sum(axis=0),
            )
        readings = self.changes.fleet.readings
        entered = [readings.of(name)[chosen] for name in ("entry_count", "first_count")]
        tokens = [readings.of(name)[chosen] for name in ("computed_tokens", "cached_tokens")]
        n, sums = np.nansum(entered, axis=(0, 1)), np.nansum(tokens, axis=(0, 1))
        mean = sums.sum() / max(n.sum(), 1.0)
        squares = np.where(n > 0, (sums - mean * n) ** 2 / np.maximum(n, 1.0), 0.0)
        variance = block_means(squares[None], bins)[0]
        count, total = block_sums(n[None], bins)[0], block_sums(sums[None], bins)[0]
        return count, total, count * variance + total**2 / np.maximum(count, 1.0)

    def prompt_counts(self, rows: Rows, bins: int = 0) -> tuple[Floats, Floats]:
        """Prompt lengths (of buckets), and how many prompts of each, over all `rows`.

        In blocks of `bins` bins, by default the usual ones.
        """
        lengths = self.changes.fleet.prompts
        counts = np.nansum(lengths.counts[:, self.fleet_rows[rows]], axis=1)
        return lengths.tokens, block_sums(counts, bins or self.block_bins)

    def prompt_counts_apart(self, rows: Rows) -> Floats:
        """Number of prompts by length, engine and block."""
        counts = np.nan_to_num(self.changes.fleet.prompts.counts[:, self.fleet_rows[rows]])
        return np.stack([block_sums(each, self.block_bins) for each in counts])

    def prompt_sums(self, rows: Rows) -> Floats:
        """Tokens of all prompts of some engines by bin, from their histogram; NaN if unknown."""
        return known_sum(self.changes.fleet.prompts.sums[self.fleet_rows[rows]], axis=0)

    def block_of(self, bin_number: int) -> int:
        """The block that contains a bin; the first for those before it."""
        grid, per_block = self.changes.fleet.grid, self.block_bins
        return max(0, (bin_number - grid.bins + self._blocks.blocks * per_block) // per_block)

    @property
    def block_bins(self) -> int:
        """Number of bins in a block."""
        return round(self.block_seconds / self.changes.fleet.grid.step_seconds)

    def front_waits(self) -> tuple[Floats, Floats] | None:
        """Seconds and number of first tokens by bin, observed from the front end on."""
        users = self.changes.fleet.users.get(self.place)
        if users is None:
            return None
        seconds, count = users.of("front_first_token_seconds"), users.of("front_first_token_count")
        return None if seconds is None or count is None else (seconds, count)

    def engine_waits(self, rows: Rows) -> tuple[Floats, Floats]:
        """Seconds and number of first tokens by bin, over some engines, from arrival there on."""
        readings, chosen = self.changes.fleet.waits, self.fleet_rows[rows]
        is_prefill = np.array([self.engines[row].role is Role.PREFILL for row in rows])[:, None]
        seconds, count = (
            known_sum(
                np.where(
                    is_prefill,
                    readings.of(f"entry_{part}")[chosen],
                    readings.of(f"first_{part}")[chosen],
                ),
                axis=0,
            )
            for part in ("seconds", "count")
        )
        return seconds, count

    def recent(self, name: str, rows: Rows) -> Floats:
        """Mean of a block value over the last blocks."""
        return recent_mean(self.blocks(name, rows))

    def recent_over(self, over: str, under: str, rows: Rows) -> Floats:
        """Sum over sum in the last blocks."""
        return recent_ratio(self.blocks(over, rows), self.blocks(under, rows))

    def ratio_over(self, over: str, under: str, rows: Rows, chosen: Flags) -> Floats:
        """Sum over sum in the blocks that are `chosen` of each row; NaN without any."""
        return quotient(
            *(
                known_sum(np.where(chosen, self.blocks(name, rows), np.nan))
                for name in (over, under)
            )
        )

    def since_seconds(self, onset_block: int) -> float:
        """Unix time at which a block begins."""
        grid = self.changes.fleet.grid
        back = self._blocks.blocks - onset_block
        return grid.now_seconds - back * self.block_seconds


def model_views(changes: EngineChanges, targets: Targets) -> Iterator[ModelView]:
    """The models of a fleet, ordered by cluster, namespace and name."""
    rows: dict[ModelPlace, list[int]] = {}
    for row, engine in enumerate(changes.fleet.engines):
        rows.setdefault(engine.model, []).append(row)
    for place in sorted(rows):
        engines = tuple(changes.fleet.engines[row] for row in rows[place])
        fleet_rows = np.array(rows[place], dtype=np.intp)
        yield ModelView(place, targets, changes, fleet_rows, engines)
