"""Rate and lengths of a model's requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import floor, log, prod

from disagg_cluster.planner.capacity.problems import not_in_range, refuse

MOST_TOKENS = 1e7
"""The longest mean length: where tokens arrive without requests, it is no length at all."""
_MOST_DISPERSION = 1e4
_MOST_FACTOR = 1e3
LENGTH_GRID = 1.25
_ALIKE = 1.01
_LEAST_WEIGHT = 1e-6
_DISPERSION_GRID = 0.25
_FINE_DISPERSION = 2.0
_FACTOR_GRID = 1.1


@dataclass(frozen=True, slots=True)
class RequestMix:
    """A load of requests, with means of their lengths.

    Args:
        requests_per_second: How many arrive.
        prompt_tokens: Prompt tokens to compute, without those that a cache had.
        output_tokens: Tokens to generate.
        cached_tokens: Prompt tokens that are not computed but held and attended to.
        arrival_dispersion: Variance over mean of the arrivals in a second (c_a²): 1 is Poisson.
        prompt_dispersion: Squared coefficient of variation of prompts with their cached part, and,
            as no engine reports more, of `prompt_tokens`; 0 if all are equal.
        output_dispersion: The same for `output_tokens`.
        context_factor: Context that decoding requests hold, over what it would be if the lengths
            of prompts and outputs were independent: below 1 if long outputs follow short prompts.

    Raises:
        ValueError: A value is no number or negative, a length not from 1 to ten million tokens, a
            dispersion above 10,000, or a factor not from a thousandth to 1,000; lists all problems.
    """

    requests_per_second: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0
    arrival_dispersion: float = 1.0
    prompt_dispersion: float = 1.0
    output_dispersion: float = 1.0
    context_factor: float = 1.0

    def __post_init__(self) -> None:
        lengths = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        refuse(
            [
                *not_in_range({"requests_per_second": self.requests_per_second}),
                *not_in_range(lengths, 1.0, MOST_TOKENS),
                *not_in_range({"cached_tokens": self.cached_tokens}, 0.0, MOST_TOKENS),
                *not_in_range(
                    {
                        "arrival_dispersion": self.arrival_dispersion,
                        "prompt_dispersion": self.prompt_dispersion,
                        "output_dispersion": self.output_dispersion,
                    },
                    0.0,
                    _MOST_DISPERSION,
                ),
                *not_in_range(
                    {"context_factor": self.context_factor}, 1 / _MOST_FACTOR, _MOST_FACTOR
                ),
            ]
        )

    @property
    def attended_tokens(self) -> float:
        """Earlier tokens that a computed prompt token attends to, averaged over such tokens.

        Long prompts have more of the tokens: the mean of n² over n, halved, is (1 + c²) n / 2.
        """
        return self.cached_tokens + self.prompt_tokens * (1 + self.prompt_dispersion) / 2

    @property
    def context_tokens(self) -> float:
        """KV tokens that a decoding request holds, averaged over such requests and over time."""
        return self.context_factor * self._independent_tokens

    @property
    def context_dispersion(self) -> float:
        """Squared coefficient of variation of the KV tokens that decoding requests hold.

        Tokens generated so far vary as exponential lengths do: from none to far above the mean.
        """
        held = self.context_tokens
        of_prompts = max(0.0, held - self._generated_tokens)
        # What requests lack of their cached parts they are taken to share.
        own = self.prompt_tokens + min(
            max(of_prompts - self.prompt_tokens, 0.0), self.cached_tokens
        )
        # Prompts of decoding requests vary by this much more than those of arriving ones, as with
        # two kinds of requests of which one stays longer.
        ratio = of_prompts / own
        variance = ratio * self.prompt_dispersion * own**2
        return (variance + self._generated_tokens**2) / held**2

    @property
    def _independent_tokens(self) -> float:
        """KV tokens that a request holds if lengths of outputs and prompts are independent."""
        return self.prompt_tokens + self.cached_tokens + self._generated_tokens

    @property
    def _generated_tokens(self) -> float:
        """Tokens generated so far: long outputs stay longer, so (1 + c²) times half the mean."""
        return self.output_tokens * (1 + self.output_dispersion) / 2

    @property
    def arrival_share(self) -> float:
        """Share of a decode batch's variance that comes from arrivals.

        1 if all requests decode equally long, 1/2 if the times are exponential.
        """
        return 1 / (1 + self.output_dispersion)

    def with_load(self, requests_per_second: float) -> RequestMix:
        """The same requests at another rate."""
        return replace(self, requests_per_second=requests_per_second)


def with_alike_lengths(mix: RequestMix) -> RequestMix:
    """The mix with prompt and output rounded to a hundredth: such mixes need no curve each."""
    prompt, output = (
        min(MOST_TOKENS, _ALIKE ** round(log(tokens, _ALIKE)))
        for tokens in (mix.prompt_tokens, mix.output_tokens)
    )
    return replace(mix, prompt_tokens=prompt, output_tokens=output)


def grid_mixes(mix: RequestMix) -> Mapping[RequestMix, float]:
    """Mixes on a coarse grid around this one, with their weights, the nearest one first.

    Lengths lie between steps of a quarter; dispersions and the context factor are rounded.
    """
    lengths = {
        "prompt_tokens": _around(mix.prompt_tokens),
        "output_tokens": _around(mix.output_tokens),
        "cached_tokens": _around(mix.cached_tokens) if mix.cached_tokens >= 1 else [(0.0, 1.0)],
    }
    rounded = replace(
        mix,
        requests_per_second=1.0,
        arrival_dispersion=_stepped(mix.arrival_dispersion),
        prompt_dispersion=_stepped(mix.prompt_dispersion),
        output_dispersion=_stepped(mix.output_dispersion),
        context_factor=float(_FACTOR_GRID ** floor(log(mix.context_factor, _FACTOR_GRID) + 0.5)),
    )
    found = {}
    for corner in product(*lengths.values()):
        tokens = {name: each for name, (each, _) in zip(lengths, corner, strict=True)}
        found[replace(rounded, **tokens)] = prod(weight for _, weight in corner)
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _around(tokens: float) -> list[tuple[float, float]]:
    """The steps of the length grid around a length, with their weights."""
    step = log(max(tokens, 1.0), LENGTH_GRID)
    lower = floor(step)
    found = [(LENGTH_GRID**lower, lower + 1 - step), (LENGTH_GRID ** (lower + 1), step - lower)]
    return [(min(each, MOST_TOKENS), weight) for each, weight in found if weight > _LEAST_WEIGHT]


def _stepped(dispersion: float) -> float:
    if dispersion > _FINE_DISPERSION:
        return LENGTH_GRID ** floor(log(dispersion, LENGTH_GRID) + 0.5)
    return _DISPERSION_GRID * floor(dispersion / _DISPERSION_GRID + 0.5)
