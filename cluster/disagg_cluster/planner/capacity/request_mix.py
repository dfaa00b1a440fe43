"""What the requests of a model are like."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.planner.capacity.problems import not_in_range, refuse

_MOST_TOKENS = 1e7
_MOST_DISPERSION = 1e4
_MOST_FACTOR = 1e3


@dataclass(frozen=True, slots=True)
class RequestMix:
    """A load of requests, with means of their lengths.

    Args:
        requests_per_second: How many arrive.
        prompt_tokens: To compute, after what a cache had.
        output_tokens: To write.
        cached_tokens: Of the prompt, not computed but held and attended to.
        arrival_dispersion: Variance over mean of the arrivals in a second (c_a²): 1 is Poisson.
        prompt_dispersion: Squared coefficient of variation of `prompt_tokens`; 0 is all alike.
        output_dispersion: The same of `output_tokens`.
        context_factor: What decoding requests hold, over what they would if prompts and outputs
            were long or short by themselves: below 1 where long outputs follow short prompts.

    Raises:
        ValueError: One is no number or negative, a length not from 1 to ten million tokens, a
            dispersion above 10,000, or a factor not from a thousandth to 1,000; says all of it.
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
                *not_in_range(lengths, 1.0, _MOST_TOKENS),
                *not_in_range({"cached_tokens": self.cached_tokens}, 0.0, _MOST_TOKENS),
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
        """Earlier tokens that a computed prompt token attends to, in the mean over such tokens.

        Long prompts have more of the tokens: the mean of n² over n, halved, is (1 + c²) n / 2.
        """
        return self.cached_tokens + self.prompt_tokens * (1 + self.prompt_dispersion) / 2

    @property
    def context_tokens(self) -> float:
        """KV tokens that a decoding request holds, in the mean over such requests and over time."""
        return self.context_factor * self._apart_tokens

    @property
    def context_dispersion(self) -> float:
        """Squared coefficient of variation of what decoding requests hold.

        Of what they have written as of exponential lengths: anything from nothing to far more.
        """
        held, prompts = self.context_tokens, self.prompt_tokens + self.cached_tokens
        # By so much prompts differ more of those that decode than of those that come: as of two
        # kinds of requests, of which one is there for longer.
        weighed = max(0.0, held - self._written_tokens) / prompts
        variance = weighed * self.prompt_dispersion * self.prompt_tokens**2
        return (variance + self._written_tokens**2) / held**2

    @property
    def _apart_tokens(self) -> float:
        """What one holds if outputs have nothing to do with prompts."""
        return self.prompt_tokens + self.cached_tokens + self._written_tokens

    @property
    def _written_tokens(self) -> float:
        """Long outputs are there longer: half of them is (1 + c²) times half of the mean."""
        return self.output_tokens * (1 + self.output_dispersion) / 2

    @property
    def stay_alike(self) -> float:
        """How alike long requests stay that decode: 1 all alike, 1/2 as if exponential.

        The part of the fluctuation of those in an engine that is that of their arrivals.
        """
        return 1 / (1 + self.output_dispersion)

    def with_load(self, requests_per_second: float) -> RequestMix:
        """As many requests as this, each as they are."""
        return replace(self, requests_per_second=requests_per_second)
