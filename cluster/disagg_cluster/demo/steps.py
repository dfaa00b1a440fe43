"""The nouns of a stand-in engine: a request, a step planned, a step done, the load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Request:
    """One request inside the engine.

    `remote_prompt` says that the KV of the prompt comes from another engine. `computed_tokens`
    counts prompt tokens in the cache, computed here or received; `output_tokens` those written.
    """

    prompt_tokens: int
    max_tokens: int
    arrived_ns: int
    remote_prompt: bool = False
    computed_tokens: int = 0
    output_tokens: int = 0
    last_token_ns: int = 0

    @property
    def room_tokens(self) -> int:
        """KV cache that it will need at most."""
        return self.prompt_tokens + self.max_tokens

    @property
    def held_tokens(self) -> int:
        """KV cache that it fills now."""
        return self.computed_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the next step will do: prompt chunks, received requests to enter, tokens to write."""

    begun_ns: int
    planned_ns: int
    chunks: tuple[tuple[Request, int], ...]
    received: tuple[Request, ...]
    decoding: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One step that has ended, counted the way vLLM counts it.

    `context_*` and `generation_*` are what was scheduled; a request whose KV was received is a
    context request of one token in its first step. `computed_tokens` and `external_tokens` say
    where the prompts that ended in this step came from, all their chunks lumped together.
    `new_tokens` counts every token written, the first of a request included.
    """

    begun_ns: int
    ended_ns: int
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    external_tokens: int = 0
    new_tokens: int = 0
    first_token_seconds: tuple[float, ...] = ()
    inter_token_seconds: tuple[float, ...] = ()
    finished: tuple[Request, ...] = ()

    @property
    def elapsed_ns(self) -> int:
        """How long the step held the engine's GPUs."""
        return self.ended_ns - self.begun_ns


@dataclass(frozen=True, slots=True)
class Load:
    """The requests in the engine now; `deferred` wait for their KV, `waiting` for room."""

    running: int
    waiting: int
    deferred: int
    kv_usage_ratio: float
