"""Requests in an engine: its limits, the work of one step, and the results of ended steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_cluster.simulator.engine.kv_cache import Holding, KvCache
from disagg_cluster.simulator.engine.roofline import BatchWork


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `tokens` tokens of a prompt, the same for every prompt of this `identity`."""

    identity: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """A user's request: a prompt, and the number of tokens to generate."""

    number: int
    arrived_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: Prefix | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside one engine.

    It has `tokens` so far, of prompt and output; the KV of the first `computed` is in the cache.
    Each step computes some of the rest, and generates one more token once none is left.

    `remote_prompt`: the KV of the prompt comes from another engine (`received` when it has
    arrived). `kept`: its own KV stays after the last token, until another engine has fetched it.
    `aborted`: its user is gone.
    """

    number: int
    prompt_tokens: int
    max_tokens: int
    arrived_ns: int
    prefix: Prefix | None = None
    remote_prompt: bool = False
    kept: bool = False
    received: bool = False
    aborted: bool = False
    tokens: int = field(init=False)
    computed: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    preemptions: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int = 0
    holding: Holding = field(default_factory=Holding)

    def __post_init__(self) -> None:
        self.tokens = self.prompt_tokens

    @property
    def written(self) -> int:
        """Tokens generated so far."""
        return self.tokens - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Tokens whose KV must still be computed before the next one can be generated."""
        return self.tokens - self.computed

    @property
    def left(self) -> int:
        """Tokens still to generate."""
        return self.prompt_tokens + self.max_tokens - self.tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of an engine: the relevant options of vLLM's scheduler."""

    kv_blocks: int
    """Blocks of the cache that requests can have."""
    block_tokens: int = 16
    running_requests: int = 256
    """Requests in the batch at once (`--max-num-seqs`)."""
    step_tokens: int = 8192
    """Tokens of one step; longer prompts are chunked (`--max-num-batched-tokens`)."""
    reserved_output_tokens: int = 0
    """Room kept free for the output of each present request, before another's KV may arrive: as in
    SGLang's decode engines (`--num-reserved-decode-tokens`).
    """


class SchedulerState(NamedTuple):
    """The current requests in an engine; `deferred` wait for their KV, `waiting` for room."""

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float = 0.0


@dataclass(slots=True)
class StepBatch:
    """The work of one step.

    `context`: requests that compute several tokens, and how many. `writing`: requests that compute
    just their last token, and so generate the next; for `starting` of them it is the first.
    `preempted`: how many were preempted to make room.
    """

    context: list[tuple[Sequence, int]] = field(default_factory=list)
    writing: list[Sequence] = field(default_factory=list)
    starting: int = 0
    preempted: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether the next step is the same again, except for one more token per request."""
        return not (self.context or self.starting or self.preempted)

    def enter(self, sequence: Sequence, tokens: int) -> None:
        """Add a request that computes its next `tokens` tokens."""
        if tokens == 1 == sequence.tokens - sequence.computed:
            self.writing.append(sequence)
            self.starting += sequence.tokens == sequence.prompt_tokens
        else:
            self.context.append((sequence, tokens))

    def everyone(self) -> Iterator[Sequence]:
        """Yield all requests in it."""
        for sequence, _ in self.context:
            yield sequence
        yield from self.writing

    def work(self, later_steps: float = 0.0) -> BatchWork:
        """Return the GPU work of the step, or of the same one `later_steps` steps later."""
        pairs = kv_tokens = 0
        for sequence, chunk in self.context:
            kv_tokens += sequence.computed + chunk
            pairs += chunk * sequence.computed + chunk * (chunk + 1) // 2
        writers = len(self.writing)
        return BatchWork(
            sum([chunk for _, chunk in self.context]),
            pairs,
            kv_tokens,
            writers,
            sum([s.tokens for s in self.writing]) + writers * later_steps,
        )


@dataclass(slots=True)
class Outcome:
    """`count` equal consecutive steps that have ended; more than one only if all just decode.

    Counts are per step: `context_*` belongs to requests without output yet, `generation_*` to the
    others, even where they recompute after a preemption. `computed_tokens`, `cached_tokens` and
    `external_tokens` are the origins of the prompts that ended in the step, all chunks of each
    together.

    `started` generated their first token, `finished` their last. `gaps` counts the tokens by their
    distance from the previous one in nanoseconds, over all steps.
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
    batch: StepBatch, cache: KvCache, *, ended_ns: int, count: int, length_ns: int, period_ns: int
) -> Outcome:
    """Apply `count` steps of `batch`, the last of which ended at `ended_ns`.

    More than one only for a repeatable batch. `period_ns` is from the end of one to the end of the
    next.
    """
    outcome = Outcome(ended_ns, length_ns, count, preempted=batch.preempted)
    first_ns = ended_ns - (count - 1) * period_ns
    for sequence, tokens in batch.context:
        _compute(sequence, tokens, first_ns, outcome)
    _write(batch.writing, first_ns, outcome)
    if count > 1:
        _repeat(batch.writing, cache, count - 1, ended_ns)
        later = (count - 1) * len(batch.writing)
        outcome.gaps[period_ns] = outcome.gaps.get(period_ns, 0) + later
    for sequence in outcome.started:
        if sequence.prefix is not None and not sequence.aborted:
            cache.publish(sequence.prefix.identity, sequence.holding, sequence.prefix.tokens)
    outcome.finished = [
        s for s in batch.everyone() if s.tokens == s.prompt_tokens + s.max_tokens and not s.aborted
    ]
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


def _write(writing: Collection[Sequence], ended_ns: int, outcome: Outcome) -> None:
    """Have each request compute its last token, and so generate the next."""
    gaps, generating = outcome.gaps, 0
    for sequence in writing:
        generating += sequence.tokens != sequence.prompt_tokens
        if sequence.first_token_ns is None:
            _start(sequence, ended_ns, outcome)
        else:
            gap_ns = ended_ns - sequence.last_token_ns
            gaps[gap_ns] = gaps.get(gap_ns, 0) + 1
        sequence.computed += 1
        sequence.tokens += 1
        sequence.last_token_ns = ended_ns
    outcome.generation_requests += generating
    outcome.generation_tokens += generating
    outcome.context_requests += len(writing) - generating
    outcome.context_tokens += len(writing) - generating


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
