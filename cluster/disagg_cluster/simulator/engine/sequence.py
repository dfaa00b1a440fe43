"""A request as its user sends it, and as an engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_cluster.simulator.engine.kv_cache import Holding


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `tokens` tokens of a prompt, the same for every prompt of this `identity`."""

    identity: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for: a prompt to read and so many tokens to write."""

    number: int
    arrived_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: Prefix | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside one engine.

    It has `tokens` so far, prompt and written; the KV of the first `computed` is in the cache.
    Each step computes some of the rest, and writes one more token once none is left.

    `remote_prompt`: the KV of the prompt comes from another engine (`received` when it is here).
    `kept`: its own KV stays after the last token, until another engine has fetched it. `aborted`:
    its user is gone.
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
        """Tokens written so far."""
        return self.tokens - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Tokens whose KV must still be computed before the next one can be written."""
        return self.tokens - self.computed

    @property
    def left(self) -> int:
        """Tokens still to write."""
        return self.prompt_tokens + self.max_tokens - self.tokens
