"""Step times of one engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_exporter.errors import DisaggError


class UnseenStepError(DisaggError):
    """A step too far outside the observed range to predict its time."""


class EngineCosts(Protocol):
    """Times of an engine's steps, each from its start to the start of the next step."""

    @property
    def shape(self) -> EngineShape:
        """The engine that these costs describe."""

    @property
    def relative_error(self) -> float:
        """Relative standard deviation of the error of these times, as far as known."""

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the time of a step; any argument, or all of them, may be 0.

        Args:
            prompt_tokens: Prompt tokens that the step computes.
            attended_tokens: Mean number of earlier tokens that each of these attends to: half of
                its length for a prompt computed from its start, plus all that was cached.
            decodes: Requests that decode in the step, one token each.
            decode_context_tokens: KV tokens that those requests hold together.

        Raises:
            UnseenStepError: The time is not known.
        """


class PhaseCosts(ABC):
    """Costs that are known separately for steps with prompts and for steps that decode."""

    __slots__ = ()

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step, from those of its two halves.

        Raises:
            UnseenStepError: No similar step was observed.
        """
        if prompt_tokens <= 0:
            return self._decode_seconds(max(decodes, 1.0), decode_context_tokens)
        seconds = self._prompt_seconds(prompt_tokens, attended_tokens)
        if decodes <= 0:
            return seconds
        decode_seconds = self._decode_seconds(decodes, decode_context_tokens)
        return self._mixed_seconds(prompt_tokens, seconds, decodes, decode_seconds)

    @abstractmethod
    def _prompt_seconds(self, tokens: float, attended_tokens: float) -> float:
        """Time of a step that only computes prompt tokens."""

    @abstractmethod
    def _decode_seconds(self, decodes: float, context_tokens: float) -> float:
        """Time of a step that only decodes."""

    @abstractmethod
    def _mixed_seconds(
        self, prompt_tokens: float, prompt_seconds: float, decodes: float, decode_seconds: float
    ) -> float:
        """Time of both halves in one step, from the time of each alone."""


@dataclass(frozen=True, slots=True)
class StretchedCosts:
    """An engine with the prefill and decode times of `costs`, each multiplied by a factor.

    The time that a prompt adds to a step is prefill; the time of the step without it is decode.
    """

    costs: EngineCosts
    prefill_factor: float = 1.0
    decode_factor: float = 1.0

    @property
    def shape(self) -> EngineShape:
        """As for `costs`."""
        return self.costs.shape

    @property
    def relative_error(self) -> float:
        """As for `costs`."""
        return self.costs.relative_error

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step, each phase multiplied by its factor."""
        whole = self.costs.step_seconds(
            prompt_tokens, attended_tokens, decodes, decode_context_tokens
        )
        if not prompt_tokens or self.prefill_factor == self.decode_factor:
            return whole * self.decode_factor
        if not decodes:
            return whole * self.prefill_factor
        decode = self.costs.step_seconds(0.0, 0.0, decodes, decode_context_tokens)
        return decode * self.decode_factor + (whole - decode) * self.prefill_factor
