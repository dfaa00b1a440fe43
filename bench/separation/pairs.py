"""How near the gain is that was measured where others ran both ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.separation.deployments import Deployment, Pair
from bench.separation.foreseen import Foreseen, Foresight

_CLEAR = 0.1


@dataclass(frozen=True, slots=True)
class PairScore:
    """Verdicts on pairs, held to what was measured.

    `clear` are the decided pairs whose gain is more than a tenth from 1; `winners` of them gained,
    which is what is right of "always separate". `losers` were clear losses, decided or not.
    """

    pairs: int
    decided: int
    clear: int
    right: int
    winners: int
    losers: int
    losers_named: int
    median_error: float


def foresee(pairs: Sequence[Pair], foresight: Foresight) -> list[Foreseen]:
    """What is foreseen of those pairs of which the tables know enough."""
    found = [foresight.of(pair) for pair in pairs]
    return [each for each in found if each is not None]


def score(pairs: int, foreseen: Sequence[Foreseen]) -> PairScore:
    """Count what was decided, and what was right; `pairs` are all that were asked about."""
    decided = [each for each in foreseen if each.gain.worth_it is not None]
    clear = [each for each in decided if abs(each.pair.gain - 1) > _CLEAR]
    losers = [each for each in foreseen if each.pair.gain < 1 - _CLEAR]
    return PairScore(
        pairs=pairs,
        decided=len(decided),
        clear=len(clear),
        right=sum(each.gain.worth_it is (each.pair.gain > 1) for each in clear),
        winners=sum(each.pair.gain > 1 for each in clear),
        losers=len(losers),
        losers_named=sum(each.gain.worth_it is False for each in losers),
        median_error=median(abs(each.gain.ratio / each.pair.gain - 1) for each in foreseen),
    )


def other_pairs(
    made: Sequence[Pair], listed: Sequence[Pair], deployments: Sequence[Deployment], least: int
) -> list[Pair]:
    """Pairs that are not listed, of kinds with so many deployments each way at least."""
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
    """What the gains measured at the next lower and the next higher speed tell, and are off by.

    They know separate rows of the same deployments, so this is how rough what was measured is, and
    nobody's forecast. Between them the logarithm of the gain is a line over that of the speed.
    """
    gains = {(pair.kind, pair.user_tokens_per_second): pair.gain for pair in measured}
    for pair in pairs:
        speed = pair.user_tokens_per_second
        others = [other for kind, other in gains if kind == pair.kind]
        low = max((other for other in others if other < speed), default=None)
        high = min((other for other in others if other > speed), default=None)
        if low is not None and high is not None:
            part = math.log(speed / low) / math.log(high / low)
            told = gains[pair.kind, low] ** (1 - part) * gains[pair.kind, high] ** part
            yield abs(told / pair.gain - 1)


def table(foreseen: Sequence[Foreseen], by_tables: Sequence[float | None]) -> str:
    """One line a pair."""
    lines = [
        f"{'deployments':50} {'tok/s/user':>10} {'measured':>8} {'foreseen':>8} "
        f"{'80 % interval':>14} {'tables':>6}  verdict"
    ]
    for each, tabled in zip(foreseen, by_tables, strict=True):
        kind, gain = each.pair.kind, each.gain
        name = f"{kind.model.split('/')[-1]} {kind.system} {kind.precision} "
        name += f"{kind.prompt_tokens}/{kind.output_tokens}"
        verdict = {True: "separate", False: "stay mixed", None: "undecided"}[gain.worth_it]
        told = "-" if tabled is None else f"{tabled:.2f}"
        lines.append(
            f"{name:50} {each.pair.user_tokens_per_second:10.0f} {each.pair.gain:8.2f} "
            f"{gain.ratio:8.2f} {f'{gain.low:.2f} to {gain.high:.2f}':>14} {told:>6}  {verdict}"
        )
    return "\n".join(lines)
