"""What steps that have ended did: to the requests in them, and as vLLM counts it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from disagg_cluster.simulator.engine.batch import Batch
from disagg_cluster.simulator.engine.kv_cache import KvCache
from disagg_cluster.simulator.engine.sequence import Sequence


@dataclass(slots=True)
class Outcome:
    """`count` equal steps in a row that have ended; only of pure writing more than one.

    What is counted is of each step: `context_*` belongs to requests that had written nothing
    yet, `generation_*` to the others, even where they compute again what a preemption took.
    `computed_tokens`, `cached_tokens` and `external_tokens` say where the prompts that ended in
    the step came from, all chunks of each lumped together.

    `started` wrote their first token, `finished` their last. `gaps` counts how many tokens came
    how many nanoseconds after the one before, over all steps.
    """

    ended_ns: int
    length_ns: int
    count: int
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    preempted: int = 0
    started: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    gaps: dict[int, int] = field(default_factory=dict)

    @property
    def elapsed_ns(self) -> int:
        """How long all of the steps held the engine's GPUs."""
        return self.length_ns * self.count


def apply(
    batch: Batch, cache: KvCache, *, ended_ns: int, count: int, length_ns: int, period_ns: int
) -> Outcome:
    """Let the requests of `batch` take `count` steps, the last of which ended at `ended_ns`.

    More than one only of a batch that is repeatable. `period_ns` is from the end of one to the
    end of the next.
    """
    outcome = Outcome(ended_ns, length_ns, count, preempted=batch.preempted)
    first_ns = ended_ns - (count - 1) * period_ns
    for sequence, tokens in batch.context:
        _compute(sequence, tokens, first_ns, outcome)
    for sequence in batch.writing:
        _compute(sequence, 1, first_ns, outcome)
    if count > 1:
        _repeat(batch.writing, cache, count - 1, ended_ns)
        later = (count - 1) * len(batch.writing)
        outcome.gaps[period_ns] = outcome.gaps.get(period_ns, 0) + later
    for sequence in outcome.started:
        if sequence.prefix is not None and not sequence.aborted:
            cache.publish(sequence.prefix.identity, sequence.holding, sequence.prefix.tokens)
    outcome.finished = [s for s in batch.everyone() if not (s.left or s.aborted)]
    return outcome


def _compute(sequence: Sequence, tokens: int, ended_ns: int, outcome: Outcome) -> None:
    if sequence.tokens == sequence.prompt_tokens:
        outcome.context_requests += 1
        outcome.context_tokens += tokens
    else:
        outcome.generation_requests += 1
        outcome.generation_tokens += tokens
    sequence.computed += tokens
    if sequence.computed < sequence.tokens:
        return
    if sequence.first_token_ns is None:
        _start(sequence, ended_ns, outcome)
    else:
        gap_ns = ended_ns - sequence.last_token_ns
        outcome.gaps[gap_ns] = outcome.gaps.get(gap_ns, 0) + 1
    sequence.tokens += 1
    sequence.last_token_ns = ended_ns


def _start(sequence: Sequence, ended_ns: int, outcome: Outcome) -> None:
    sequence.first_token_ns = ended_ns
    outcome.started.append(sequence)
    outcome.cached_tokens += sequence.cached_tokens
    outcome.external_tokens += sequence.external_tokens
    outcome.computed_tokens += (
        sequence.prompt_tokens - sequence.cached_tokens - sequence.external_tokens
    )


def _repeat(writing: Iterable[Sequence], cache: KvCache, steps: int, ended_ns: int) -> None:
    for sequence in writing:
        sequence.computed += steps
        sequence.tokens += steps
        sequence.last_token_ns = ended_ns
        cache.hold(sequence.holding, sequence.computed)
