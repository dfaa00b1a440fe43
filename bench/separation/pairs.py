"""Predicted gains compared with those that others measured by running both ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.separation.deployments import Deployment, Pair
from bench.separation.predicted import Predicted, Predictor

_CLEAR = 0.1


@dataclass(frozen=True, slots=True)
class PairScore:
    """Verdicts on pairs, compared with measurements.

    `clear` are the decided pairs whose gain is more than a tenth from 1; `winners` of them gained,
    so "always separate" is right for these. `losers` were clear losses, decided or not.
    """

    pairs: int
    decided: int
    clear: int
    right: int
    winners: int
    losers: int
    losers_named: int
    median_error: float


def predict(pairs: Sequence[Pair], predictor: Predictor) -> list[Predicted]:
    """Return the predictions for the pairs that the tables cover."""
    found = [predictor.of(pair) for pair in pairs]
    return [each for each in found if each is not None]


def score(pairs: int, predicted: Sequence[Predicted]) -> PairScore:
    """Count the decided and the right verdicts; `pairs` is the number of all pairs."""
    decided = [each for each in predicted if each.gain.worth_it is not None]
    clear = [each for each in decided if abs(each.pair.gain - 1) > _CLEAR]
    losers = [each for each in predicted if each.pair.gain < 1 - _CLEAR]
    return PairScore(
        pairs=pairs,
        decided=len(decided),
        clear=len(clear),
        right=sum(each.gain.worth_it is (each.pair.gain > 1) for each in clear),
        winners=sum(each.pair.gain > 1 for each in clear),
        losers=len(losers),
        losers_named=sum(each.gain.worth_it is False for each in losers),
        median_error=median(abs(each.gain.ratio / each.pair.gain - 1) for each in predicted),
    )


def other_pairs(
    made: Sequence[Pair], listed: Sequence[Pair], deployments: Sequence[Deployment], least: int
) -> list[Pair]:
    """Return pairs not listed, of kinds with at least `least` deployments each way."""
    known = {(pair.kind, pair.user_tokens_per_second) for pair in listed}
    return [
        pair
        for pair in made
        if (pair.kind, pair.user_tokens_per_second) not in known
        and all(
            sum(each.kind == pair.kind and each.mixed is mixed for each in deployments) >= least
            for mixed in (False, True)
        )
    ]


def errors_of_neighbours(pairs: Sequence[Pair], measured: Sequence[Pair]) -> Iterator[float]:
    """Yield the errors of gains interpolated from the next lower and the next higher speed.

    Both are separate rows of the same deployments, so this shows how rough the measurements are; it
    is no forecast. The interpolation is linear in the logarithms of gain and speed.
    """
    gains = {(pair.kind, pair.user_tokens_per_second): pair.gain for pair in measured}
    for pair in pairs:
        speed = pair.user_tokens_per_second
        others = [other for kind, other in gains if kind == pair.kind]
        low = max((other for other in others if other < speed), default=None)
        high = min((other for other in others if other > speed), default=None)
        if low is not None and high is not None:
            part = math.log(speed / low) / math.log(high / low)
            between = gains[pair.kind, low] ** (1 - part) * gains[pair.kind, high] ** part
            yield abs(between / pair.gain - 1)


def table(predicted: Sequence[Predicted], by_tables: Sequence[float | None]) -> str:
    """Return a table with one line a pair."""
    lines = [
        f"{'deployments':50} {'tok/s/user':>10} {'measured':>8} {'predicted':>9} "
        f"{'80 % interval':>14} {'tables':>6}  verdict"
    ]
    for each, tabled in zip(predicted, by_tables, strict=True):
        kind, gain = each.pair.kind, each.gain
        name = f"{kind.model.split('/')[-1]} {kind.system} {kind.precision} "
        name += f"{kind.prompt_tokens}/{kind.output_tokens}"
        verdict = {True: "separate", False: "stay mixed", None: "undecided"}[gain.worth_it]
        uncorrected = "-" if tabled is None else f"{tabled:.2f}"
        lines.append(
            f"{name:50} {each.pair.user_tokens_per_second:10.0f} {each.pair.gain:8.2f} "
            f"{gain.ratio:9.2f} {f'{gain.low:.2f} to {gain.high:.2f}':>14} {uncorrected:>6}  "
            f"{verdict}"
        )
    return "\n".join(lines)
