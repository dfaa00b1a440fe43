"""What the steps of one engine take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_exporter.errors import DisaggError


class UnseenStepError(DisaggError):
    """A step too far beyond those that were seen for anyone to say what it takes."""


class EngineCosts(Protocol):
    """What one step of an engine takes, from its beginning to that of the next one."""

    @property
    def shape(self) -> EngineShape:
        """The engine it is of."""

    @property
    def relative_error(self) -> float:
        """One standard deviation of how far off it is, over what it says, as far as known."""

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Say what a step takes; any argument may be 0, and all of them.

        Args:
            prompt_tokens: Prompt tokens that it computes.
            attended_tokens: Earlier tokens to which each of these attends, in the mean: for a
                prompt computed from its start half of its length, and all that was cached.
            decodes: Requests that decode in it, one token each.
            decode_context_tokens: KV tokens that those requests hold together.

        Raises:
            UnseenStepError: Nobody knows.
        """


class CostsOfHalves(ABC):
    """Costs that are known of steps with prompts and of steps that decode, each by themselves."""

    __slots__ = ()

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """What a step takes by its halves.

        Raises:
            UnseenStepError: No like of it was seen.
        """
        if prompt_tokens <= 0:
            return self._decode_seconds(max(decodes, 1.0), decode_context_tokens)
        seconds = self._prompt_seconds(prompt_tokens, attended_tokens)
        if decodes <= 0:
            return seconds
        beside = self._decode_seconds(decodes, decode_context_tokens)
        return self._mixed_seconds(prompt_tokens, seconds, decodes, beside)

    @abstractmethod
    def _prompt_seconds(self, tokens: float, attended_tokens: float) -> float:
        """What a step takes that only reads."""

    @abstractmethod
    def _decode_seconds(self, decodes: float, context_tokens: float) -> float:
        """What a step takes that only decodes."""

    @abstractmethod
    def _mixed_seconds(
        self, prompt_tokens: float, prompt_seconds: float, decodes: float, decode_seconds: float
    ) -> float:
        """What both take in one step, by what each takes alone."""


@dataclass(frozen=True, slots=True)
class StretchedCosts:
    """An engine whose prefill and decode take so many times as long as `costs` says.

    What a prompt adds to a step is its prefill, what a step takes without it its decode.
    """

    costs: EngineCosts
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    @property
    def shape(self) -> EngineShape:
        """The engine it is of."""
        return self.costs.shape

    @property
    def relative_error(self) -> float:
        """As with `costs`."""
        return self.costs.relative_error

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """What a step takes, each phase stretched by its factor."""
        whole = self.costs.step_seconds(
            prompt_tokens, attended_tokens, decodes, decode_context_tokens
        )
        if not prompt_tokens or self.prefill_factor == self.decode_factor:
            return whole * self.decode_factor
        if not decodes:
            return whole * self.prefill_factor
        writing = self.costs.step_seconds(0.0, 0.0, decodes, decode_context_tokens)
        return writing * self.decode_factor + (whole - writing) * self.prefill_factor
