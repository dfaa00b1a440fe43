"""Searches for the largest batch within the inter-token target, by context length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.tune.batch_search import BatchEstimate, BatchSearch, batch_estimate
from disagg_cluster.tune.decode_prober import CrowdedBatch, DecodeProber
from disagg_cluster.tune.probed import TimedSteps, size_grid
from disagg_exporter.capacity.curves.curve import Point


@dataclass(frozen=True, slots=True)
class ContextTuning:
    """Results for requests with contexts of one length.

    `crowded_at` is the most that the engine ran at once, if it did not run the requested batch;
    `cut_at` the most that could be timed at once before requests ended, which says nothing of what
    the engine runs.
    """

    context_tokens: int
    target_seconds: float
    probed: TimedSteps = field(default_factory=TimedSteps)
    crowded_at: int | None = None
    cut_at: int | None = None
    most_probes: int = 0
    complete: bool = False

    @property
    def estimate(self) -> BatchEstimate:
        """The current estimate of the batch."""
        return batch_estimate(self.probed, self.target_seconds)

    @property
    def points(self) -> tuple[Point, ...]:
        """The curve: step seconds by batch size."""
        return self.probed.points


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """Results for all contexts, and the recommended setting.

    `others` is the number of requests of others that ran beside them, `ranks` that of the
    data-parallel ranks that divided each batch.
    """

    contexts: tuple[ContextTuning, ...]
    target_seconds: float
    others: int = 0
    ranks: int = 1

    @property
    def max_num_seqs(self) -> int | None:
        """The most requests within the target at every context length; None if unknown.

        Contexts of which the engine itself runs fewer do not count: its cache bounds these, and
        shorter ones may be more. Where it runs all that meet the target, it is what it runs at
        most; where the target was out of reach of the largest batch to time, nothing is known. Nor
        is it beside requests of others, where the engine ran more than each batch says, or where
        ranks divided each batch: the setting is a rank's.
        """
        if self.others or self.ranks > 1:
            return None
        if any(context.estimate.requests is None for context in self.contexts):
            return None
        missed = [each.estimate for each in self.contexts if each.estimate.slow is not None]
        if missed:
            return min(each.requests for each in missed if each.requests is not None)
        if any(context.crowded_at is None for context in self.contexts):
            return None
        return max((each.estimate.requests or 0 for each in self.contexts), default=None)


class DecodeTuner:
    """Searches for the batch of each context in turn; intermediate results are available.

    Args:
        prober: Times steps.
        context_tokens: The context lengths.
        target_seconds: The inter-token target.
        largest_batch: Largest batch to time.
    """

    def __init__(
        self,
        prober: DecodeProber,
        context_tokens: Sequence[int],
        target_seconds: float,
        largest_batch: int,
    ) -> None:
        self._prober = prober
        self._target_seconds = target_seconds
        self._largest = largest_batch
        self._contexts = [ContextTuning(tokens, target_seconds) for tokens in context_tokens]

    @property
    def found(self) -> DecodeTuning:
        """The results so far."""
        others = self._prober.others or 0
        return DecodeTuning(tuple(self._contexts), self._target_seconds, others, self._prober.ranks)

    def run(self, progress: Callable[[ContextTuning], None]) -> DecodeTuning:
        """Search to the end; raises as `DecodeProber.probe`."""
        for place, context in enumerate(self._contexts):
            self._search(place, context, progress)
        return self.found

    def _search(
        self, place: int, context: ContextTuning, progress: Callable[[ContextTuning], None]
    ) -> None:
        largest = self._largest
        while True:
            grid = size_grid(1, largest)
            most = max(len(grid) // 2, 2)
            search = BatchSearch(grid, self._target_seconds, most)
            batch = search.next_size(context.probed)
            context = replace(context, most_probes=most, complete=batch is None)
            self._contexts[place] = context
            if batch is None:
                return
            found = self._prober.probe(batch, context.context_tokens)
            if isinstance(found, CrowdedBatch):
                largest = max(1, min(found.most, batch - 1))
                most = largest if batch > 1 else 0
                if found.is_cut:
                    context = replace(context, cut_at=most)
                else:
                    context = replace(context, crowded_at=most, cut_at=None)
                if batch == 1:
                    self._contexts[place] = replace(context, complete=True)
                    return
                continue
            context = replace(context, probed=context.probed.plus(found))
            self._contexts[place] = context
            progress(context)
