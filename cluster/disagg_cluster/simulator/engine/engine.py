"""One engine in time: it plans steps, takes as long as its cost model says, and applies them.

As long as the same requests decode and nothing else happens, one step is like the next. Such steps
are one `StepRun`: planned once, applied together when the run ends or is inspected. A run whose
plan no longer holds is cut after the current step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from disagg_cluster.simulator.engine.batch import Outcome, StepBatch, apply
from disagg_cluster.simulator.engine.roofline import CostModel, Noise, Price, StepNoise
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_exporter.model import SECOND_NS


@dataclass(slots=True)
class StepRun:
    """`count` equal steps back to back, of which `done` are applied.

    Each step takes `gap_ns` of the host and then `length_ns` of the GPUs.
    """

    batch: StepBatch
    begun_ns: int
    gap_ns: int
    length_ns: int
    price: Price
    count: int
    done: int = 0

    @property
    def period_ns(self) -> int:
        """Time from the beginning of one step to the beginning of the next."""
        return self.gap_ns + self.length_ns

    def end_ns(self, steps: int) -> int:
        """Return when so many steps have ended."""
        return self.begun_ns + steps * (self.gap_ns + self.length_ns)

    def ended(self, now_ns: int) -> int:
        """Return how many steps have ended."""
        return min(self.count, (now_ns - self.begun_ns) // (self.gap_ns + self.length_ns))

    def unsettled_ns(self, now_ns: int) -> int:
        """Return how long the GPUs have worked on steps that are not applied yet."""
        ended = self.ended(now_ns)
        under_way_ns = 0
        if ended < self.count:
            under_way_ns = max(0, now_ns - self.end_ns(ended) - self.gap_ns)
        return (ended - self.done) * self.length_ns + under_way_ns


@dataclass(slots=True)
class Slowdowns:
    """Factors that lengthen the steps of an engine.

    `sick`: for no visible reason. `shared`: another process takes its part of the GPU. `mixed`: for
    steps in which requests decode beside a prompt. `cold`: for the first step of a process; it
    fades until `warm_ns`.
    """

    sick: float = 1.0
    shared: float = 1.0
    mixed: float = 1.0
    cold: float = 1.0
    cold_ns: int = 0
    warm_ns: int = 0

    def factor(self, batch: StepBatch, now_ns: int) -> float:
        """Return the factor on a step that begins now."""
        factor = self.sick * self.shared
        if batch.context and batch.writing:
            factor *= self.mixed
        if now_ns < self.warm_ns:
            left = (self.warm_ns - now_ns) / (self.warm_ns - self.cold_ns)
            factor *= 1 + (self.cold - 1) * left
        return factor


class Engine:
    """An engine's batch loop in virtual time.

    Args:
        scheduler: Chooses its work.
        costs: The costs of a step; may be replaced between two steps.
        step_noise: Random factor on them; None for none.
        gap_seconds: Host time before each step: scheduling, and processing the last output; may be
            changed.
        longest_run: The most steps planned at once. They all get the length of the middle one, so
            this limits how far the growth of the cache is averaged.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        costs: CostModel,
        step_noise: StepNoise | None = None,
        *,
        gap_seconds: float = 0.0005,
        longest_run: int = 128,
    ) -> None:
        self.scheduler = scheduler
        self.costs = costs
        self.step_noise = step_noise or StepNoise(Noise(), random.Random(0))
        self.run: StepRun | None = None
        self.gap_seconds = gap_seconds
        self.slowdowns = Slowdowns()
        self._longest_run = longest_run
        self._stalled_until_ns = 0

    def begin(self, now_ns: int) -> StepRun | None:
        """Plan the next steps, unless some are under way; None when there is nothing to do."""
        if self.run is not None or self.stalled(now_ns):
            return self.run
        batch = self.scheduler.schedule(now_ns)
        if batch is None:
            return None
        count = self._repeats(batch)
        price = self.costs.price(batch.work(later_steps=(count - 1) / 2))
        price = price.stretched(self.slowdowns.factor(batch, now_ns))
        length_ns = round(price.seconds * self.step_noise.factor(now_ns, count) * SECOND_NS)
        gap_ns = round(self.gap_seconds * SECOND_NS)
        self.run = StepRun(batch, now_ns, gap_ns, max(1, length_ns), price, count)
        return self.run

    def settle(self, now_ns: int) -> Outcome | None:
        """Apply the steps that have ended since the last call; None if there are none."""
        run = self.run
        if run is None:
            return None
        ended = run.ended(now_ns)
        if ended <= run.done:
            return None
        outcome = apply(
            run.batch,
            self.scheduler.cache,
            ended_ns=run.end_ns(ended),
            count=ended - run.done,
            length_ns=run.length_ns,
            period_ns=run.period_ns,
        )
        run.done = ended
        if ended == run.count:
            self.run = None
        if outcome.finished:
            self.scheduler.end(outcome.finished)
        return outcome

    def finish(self, now_ns: int) -> Outcome | None:
        """Apply the current step as ended now, not when planned.

        For use in real time, where a step ends when its sleep returns.
        """
        run = self.run
        if run is None:
            return None
        run.count = 1
        run.length_ns = max(1, now_ns - run.begun_ns - run.gap_ns)
        return self.settle(run.end_ns(1))

    def cut(self, now_ns: int) -> bool:
        """Make the current step the last of its run; return False if it is already."""
        run = self.run
        if run is None or run.count <= run.ended(now_ns) + 1:
            return False
        run.count = run.ended(now_ns) + 1
        return True

    def stalled(self, now_ns: int) -> bool:
        """Return whether it hangs."""
        return now_ns < self._stalled_until_ns

    def stall(self, now_ns: int, until_ns: int) -> None:
        """Hang until then. Settle first; the current step ends later by as much."""
        self._stalled_until_ns = max(self._stalled_until_ns, until_ns)
        run = self.run
        if run is not None:
            run.begun_ns = run.end_ns(run.done)
            run.count, run.done = 1, 0
            run.length_ns += until_ns - now_ns

    def _repeats(self, batch: StepBatch) -> int:
        """Return how many consecutive steps will be the same."""
        if not batch.repeatable:
            return 1
        count = min(self._longest_run, min([sequence.left for sequence in batch.writing]))
        cache = self.scheduler.cache
        if count > 1 and not cache.always_fits(len(batch.writing), count):
            growing = [(sequence.holding, sequence.computed) for sequence in batch.writing]
            count = max(1, cache.steps_with_room(growing, count))
        return count
