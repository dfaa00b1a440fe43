"""Requests served by a real engine, replayed on a simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from disagg_cluster.simulator.engine.batch import Outcome, Sequence
from disagg_exporter.model import SECOND_NS


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request and its timestamps, in seconds."""

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_token_s: float
    last_token_s: float

    @property
    def ttft_seconds(self) -> float:
        """The time from queueing to the first token."""
        return self.first_token_s - self.queued_s

    @property
    def tpot_seconds(self) -> float:
        """The mean time from one token to the next."""
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


def replay(
    real: list[ServedRequest],
    submit: Callable[[Sequence], None],
    step: Callable[[int], list[Outcome]],
) -> list[ServedRequest]:
    """Queue the requests at an engine at their times, and run it until all are served."""
    sequences = [
        Sequence(number, each.prompt_tokens, each.output_tokens, round(each.queued_s * SECOND_NS))
        for number, each in enumerate(real)
    ]
    to_come = iter(sequences)
    following: Sequence | None = next(to_come)
    now_ns, left = 0, len(sequences)
    while left:
        while following is not None and following.arrived_ns <= now_ns:
            submit(following)
            following = next(to_come, None)
        outcomes = step(now_ns)
        if outcomes:
            now_ns = outcomes[0].ended_ns
        elif following is not None:
            now_ns = following.arrived_ns
        left -= sum(len(outcome.finished) for outcome in outcomes)
    return list(_served(sequences))


def _served(sequences: list[Sequence]) -> Iterator[ServedRequest]:
    for each in sequences:
        assert each.first_token_ns is not None
        yield ServedRequest(
            each.prompt_tokens,
            each.written,
            each.arrived_ns / SECOND_NS,
            each.first_token_ns / SECOND_NS,
            each.last_token_ns / SECOND_NS,
        )
