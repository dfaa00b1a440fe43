"""The nouns of a scheduler: what an engine can hold, what it holds, and the work of one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cluster.simulator.engine.roofline import StepWork
from disagg_cluster.simulator.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold: the knobs of vLLM's scheduler that matter here."""

    kv_blocks: int
    """Blocks of the cache that requests can have."""
    block_tokens: int = 16
    running_requests: int = 256
    """Requests in the batch at once (`--max-num-seqs`)."""
    step_tokens: int = 8192
    """Tokens of one step; longer prompts are cut into chunks (`--max-num-batched-tokens`)."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The requests in an engine now; `deferred` wait for their KV, `waiting` for room."""

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float = 0.0


@dataclass(slots=True)
class Batch:
    """The work of one step.

    `context`: who computes how many tokens in bulk. `writing`: who computes just the last of its
    tokens, and so writes the next; for `starting` of them it is the first. `preempted`: how many
    were put back to make room.
    """

    context: list[tuple[Sequence, int]] = field(default_factory=list)
    writing: list[Sequence] = field(default_factory=list)
    starting: int = 0
    preempted: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether the next step is the same again, but for one more token of everyone."""
        return not (self.context or self.starting or self.preempted)

    def enter(self, sequence: Sequence, tokens: int) -> None:
        """Let a request compute its next `tokens` tokens."""
        if tokens == 1 == sequence.missing:
            self.writing.append(sequence)
            self.starting += not sequence.written
        else:
            self.context.append((sequence, tokens))

    def everyone(self) -> Iterator[Sequence]:
        """All requests in it."""
        yield from (sequence for sequence, _ in self.context)
        yield from self.writing

    def work(self, later_steps: float = 0.0) -> StepWork:
        """What the step costs the GPUs, or the same one `later_steps` steps later."""
        pairs = kv_tokens = 0
        for sequence, chunk in self.context:
            kv_tokens += sequence.computed + chunk
            pairs += chunk * sequence.computed + chunk * (chunk + 1) // 2
        writers = len(self.writing)
        return StepWork(
            context_tokens=sum(chunk for _, chunk in self.context),
            context_pairs=pairs,
            context_kv_tokens=kv_tokens,
            writers=writers,
            writers_kv_tokens=sum(s.tokens for s in self.writing) + writers * later_steps,
        )
