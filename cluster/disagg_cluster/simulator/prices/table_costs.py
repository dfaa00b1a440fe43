"""Costs of steps by a measured table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_cluster.simulator.engine.roofline import BatchWork, Price, Roofline
from disagg_cluster.simulator.prices.table import PriceTable
from disagg_exporter.errors import DisaggError

_MICRO = 1e-6
ONE_TOKEN = BatchWork(writers=1, writers_kv_tokens=1)
"""The smallest possible step."""


class PriceMismatchError(DisaggError):
    """A table for another group of GPUs; says which two."""


_MOST_KEPT = 4096


class _OfTokens(NamedTuple):
    """The parts of a step's price that its number of tokens alone determines."""

    micros: float
    experts_seconds: float
    exchange_seconds: float


@dataclass(frozen=True, slots=True)
class TableCosts:
    """The cost of steps by a table: the sum of the parts of a step.

    Between points it is linear, below the first it is constant, beyond the last extrapolated
    (`Grid`), and no step is cheaper than the smallest. Several prompts in a step cost as much as
    one with the same number of tokens and attended tokens. Without mixed batches in the table they
    cost the sum of both halves, plus the roofline's addition on GPUs with FlashAttention-2.

    `roofline` is of the same GPUs and model: it prices the all-reduce where the table leaves it
    out, the utilization of the peaks, and the cost of a throttled clock.

    Raises:
        PriceMismatchError: Table and roofline are of groups of different sizes.
    """

    table: PriceTable
    roofline: Roofline
    # Engines make steps of the same few sizes again and again.
    _known: dict[int, _OfTokens] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.table.gpus != self.roofline.tensor_parallel:
            raise PriceMismatchError(
                f"a table of {self.table.gpus} GPUs does not price "
                f"{self.roofline.tensor_parallel}: {self.table.source}"
            )

    def price(self, work: BatchWork) -> Price:
        """Return the price of one step with this work; an empty one costs as much as a request."""
        if not work.context_tokens and not work.writers:
            work = ONE_TOKEN
        of_tokens = self._of_tokens(work.context_tokens + work.writers)
        seconds = self.rank_seconds(work) + of_tokens.experts_seconds
        if self.table.surcharge is None:
            seconds += self.roofline.mixed_seconds(work)
        seconds += of_tokens.exchange_seconds
        compute_seconds, memory_seconds = self.roofline.least_seconds(work)
        if self.roofline.clock_ratio < 1:
            # The arithmetic's largest possible part of a step is lengthened.
            slower = 1 / self.roofline.clock_ratio - 1
            compute_share = min(1.0, compute_seconds / self.roofline.compute_efficiency / seconds)
            seconds *= 1 + slower * compute_share
        return Price(
            seconds, min(1.0, compute_seconds / seconds), min(1.0, memory_seconds / seconds)
        )

    def rank_seconds(self, work: BatchWork) -> float:
        """Return the duration of a step without experts and without communication between GPUs."""
        parts = self.table.parts
        of_tokens = self._of_tokens(work.context_tokens + work.writers)
        micros = of_tokens.micros + self._attention(work)
        if "requests" in parts:
            micros += parts["requests"].at(max(1, work.writers))
        # Beyond its last points, extrapolating a dip in a table could become negative.
        return max(micros, parts["tokens"].first) * _MICRO

    def experts_seconds(self, tokens: float, active: float) -> float:
        """Return the time of a step's experts over so many tokens, with so many chosen."""
        return self.table.parts["experts"].at(tokens, active) * _MICRO

    def _of_tokens(self, tokens: int) -> _OfTokens:
        known = self._known.get(tokens)
        if known is None:
            parts, experts_seconds, exchange_seconds = self.table.parts, 0.0, 0.0
            if "experts" in parts:
                active = self.roofline.model.experts_chosen(tokens)
                experts_seconds = self.experts_seconds(tokens, active)
            if not self.table.all_reduce:
                exchange_seconds = self.roofline.exchange_seconds(tokens)
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = _OfTokens(parts["tokens"].at(tokens), experts_seconds, exchange_seconds)
            self._known[tokens] = known
        return known

    def _attention(self, work: BatchWork) -> float:
        parts = self.table.parts
        chunk, writers = work.context_tokens, work.writers
        micros = 0.0
        kv_tokens = read = 0.0
        if chunk:
            own_pairs = chunk * (chunk + 1) / 2
            kv_tokens = max(0.0, (work.context_pairs - own_pairs) / chunk)
            # Many short prompts attend to less than one as long as all of them.
            shorter = min(1.0, work.context_pairs / own_pairs)
            micros += parts["context"].at(chunk, kv_tokens) * shorter
        if writers:
            read = work.writers_kv_tokens / writers
            micros += parts["decode"].at(writers, read)
        if chunk and writers and self.table.surcharge is not None:
            micros += self.table.surcharge.at(chunk, kv_tokens, writers, read)
        return micros
