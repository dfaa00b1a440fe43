"""The state kept between diagnoses, so that findings do not flap or rest on a single round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.planner.diagnose.verdict.values import (
    BEFORE_ENGINES,
    Alternative,
    BottleneckFinding,
    ModelKey,
)

# Sure findings are believed in the first round, likely ones in the second, the rest in the third.
_SURE, _LIKELY, _BELIEVED, _LIKELY_ROUNDS = 8.0, 4.6, 3, 2
# A round with several new scrapes counts as two.
_MOST_PER_ROUND = 2
# A finding without evidence is kept for so many rounds, unless another replaces it. While requests
# there wait as long as before it is kept for some minutes.
_HELD_ROUNDS, _HELD_WHILE_LONG = 2, 8
# One that is no longer kept is believed at once if it is observed again within so many rounds: the
# queues of few requests come and go.
_RECALLED_ROUNDS = 8
# At most so many suspects are reported.
_MOST_SUSPECTS = 2
_KEPT_ORDER = 0.8
# A wait of at least this part of the former one is still too long.
_AS_LONG = 0.5


@dataclass(frozen=True, slots=True)
class StandingFinding:
    """A finding as last observed, and the number of rounds in which it was observed or missed.

    In `rounds` one with several new scrapes counts twice. `wait_seconds` is the wait of requests at
    the last observation, `confidence` that of the last round: the finding's is the higher of the
    last two. `is_disputed`: the last round named other engines, and the finding is that of the
    round before. `is_past`: it was believed and is no longer.
    """

    model: ModelKey
    finding: BottleneckFinding
    rounds: int
    wait_seconds: float
    confidence: float = 0.0
    missed: int = 0
    is_disputed: bool = False
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    """Findings after the last round."""

    now_seconds: float = 0.0
    standing: tuple[StandingFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """The believed findings in order, the suspects, and what is remembered for the next round."""

    findings: tuple[BottleneckFinding, ...]
    suspects: tuple[BottleneckFinding, ...]
    remembered: tuple[StandingFinding, ...]


def settled(
    model: ModelKey,
    observed: Sequence[tuple[BottleneckFinding, float]],
    past: DiagnosisState | None,
    wait_seconds: Callable[[BottleneckFinding], float],
    forgotten_seconds: float,
    new_scrapes: int = 1,
) -> Settled:
    """Decide from the findings of this round and of earlier ones which are believed.

    Args:
        model: The diagnosed model.
        observed: The findings of this round by cost, largest first, each with its strength; those
            with strength 0 remain suspects in any number of rounds.
        past: The state after the previous round; None without one: then likely findings are
            believed after one round.
        wait_seconds: The present wait of requests at a finding.
        forgotten_seconds: Findings that began before this Unix time have no baseline in the window
            any more. They are kept while requests wait as long as before.
        new_scrapes: Number of scrapes since the previous round.
    """
    known = [each for each in (past.standing if past else ()) if each.model == model]
    significant = [(finding, strength) for finding, strength in observed if strength > 0]
    continued = _continued([finding for finding, _ in significant], known)
    remembered = []
    for number, (finding, strength) in enumerate(significant):
        before = continued.get(number)
        rounds = _rounds(strength, before, new_scrapes, is_first_round=past is None)
        sure = finding.confidence
        if before is not None:
            finding = _lasting(before, finding)
        is_disputed = before is not None and _is_disputed(before, finding)
        if before is not None and is_disputed:
            finding = before.finding
        wait = wait_seconds(finding)
        remembered.append(
            StandingFinding(model, finding, rounds, wait, sure, is_disputed=is_disputed)
        )
    believed = [each for each in remembered if each.rounds >= _BELIEVED]
    weak = [finding for finding, strength in observed if strength <= 0]
    rest = [each for each in known if each not in continued.values()]
    suspected = _continued(weak, [each for each in rest if not each.is_past])
    remembered += [_as_suspected(each, weak[number]) for number, each in suspected.items()]
    for gone in (each for each in rest if each not in suspected.values()):
        kept = _kept(
            gone,
            wait_seconds(gone.finding),
            is_old=gone.finding.since_seconds < forgotten_seconds,
            is_replaced=bool(believed),
        )
        if kept is not None:
            remembered.append(kept)
    shown = [
        each
        for each in remembered
        if each.rounds >= _BELIEVED
        and not each.is_past
        and (each in believed or not any(_explains(one.finding, each.finding) for one in believed))
    ]
    unconfirmed = [each for each in remembered if each.rounds < _BELIEVED and not each.missed]
    return Settled(
        tuple(_with_doubt(each, unconfirmed) for each in _ordered(shown)),
        _suspects(shown, remembered, weak),
        tuple(remembered),
    )


def _rounds(
    strength: float, before: StandingFinding | None, new_scrapes: int, *, is_first_round: bool
) -> int:
    """In how many rounds a finding counts as observed, this one included."""
    rounds = 1 if before is None else before.rounds + min(new_scrapes, _MOST_PER_ROUND)
    if strength >= _SURE or (is_first_round and strength >= _LIKELY):
        return max(rounds, _BELIEVED)
    if strength >= _LIKELY:
        return max(rounds, _LIKELY_ROUNDS if before is None else _BELIEVED)
    return rounds


def _lasting(before: StandingFinding, now: BottleneckFinding) -> BottleneckFinding:
    """`now` since it was first observed, and less sure only if two rounds in a row are.

    Alerts wait for a confidence that lasts, and blocks of several scrapes begin elsewhere in each
    round.
    """
    return replace(
        now,
        since_seconds=before.finding.since_seconds,
        confidence=max(now.confidence, before.confidence),
    )


def _kept(
    gone: StandingFinding, wait_seconds: float, *, is_old: bool, is_replaced: bool
) -> StandingFinding | None:
    """What is remembered of a finding that this round lacks, if anything."""
    # Without a known wait nothing shows that it lasts.
    lasts = 0 < _AS_LONG * gone.wait_seconds <= wait_seconds
    held_rounds = _HELD_WHILE_LONG if lasts else _HELD_ROUNDS
    is_past = gone.is_past or gone.missed >= held_rounds
    if gone.rounds >= _BELIEVED:
        if lasts and is_old and not gone.is_past:
            return gone
        if not is_replaced and (not is_past or gone.missed < held_rounds + _RECALLED_ROUNDS):
            return replace(gone, missed=gone.missed + 1, is_past=is_past)
    elif gone.rounds >= _LIKELY_ROUNDS and not gone.missed:
        # A barely significant finding is so in about two rounds of three.
        return replace(gone, missed=1)
    return None


def _as_suspected(before: StandingFinding, now: BottleneckFinding) -> StandingFinding:
    """A finding that is only suspected in this round, which does not count, at its present cost.

    It is as sure as it was: an alert waits for a confidence that lasts.
    """
    known = before.finding
    if now.engines != known.engines:
        return before
    return replace(
        before,
        finding=replace(now, since_seconds=known.since_seconds, confidence=known.confidence),
    )


def _continued(
    findings: Sequence[BottleneckFinding], known: Sequence[StandingFinding]
) -> dict[int, StandingFinding]:
    """The known finding that each of this round continues, by its number.

    It has the same cause and role. Its engines may have changed; of several, those with the most
    engines in common continue each other.
    """
    pairs = [
        (-len(set(finding.engines) & set(each.finding.engines)), number, place)
        for number, finding in enumerate(findings)
        for place, each in enumerate(known)
        if (finding.cause, finding.role) == (each.finding.cause, each.finding.role)
    ]
    found: dict[int, int] = {}
    for _, number, place in sorted(pairs):
        if number not in found and place not in found.values():
            found[number] = place
    return {number: known[place] for number, place in found.items()}


def _is_disputed(before: StandingFinding, now: BottleneckFinding) -> bool:
    """Whether this round is the first to name other engines than a believed finding.

    Alerts have the engine as a label: they would never persist if it changed with each round.
    """
    is_believed = before.rounds >= _BELIEVED and not (before.is_disputed or before.is_past)
    return is_believed and now.engines != before.finding.engines


def _suspects(
    shown: Sequence[StandingFinding],
    remembered: Sequence[StandingFinding],
    weak: Sequence[BottleneckFinding],
) -> tuple[BottleneckFinding, ...]:
    """Findings not believed yet: those observed most often first, then by cost.

    Those that explain the same wait as a believed finding are left out.
    """
    waiting = [each for each in remembered if each.rounds < _BELIEVED]
    waiting.sort(key=lambda each: (-each.rounds, -each.finding.ttft_cost_seconds))
    found: list[BottleneckFinding] = []
    for finding in (*(each.finding for each in waiting), *weak):
        explained = any(_explains(each.finding, finding) for each in shown)
        if not explained and all(finding.cause is not each.cause for each in found):
            found.append(finding)
    return tuple(found[:_MOST_SUSPECTS])


def _with_doubt(
    standing: StandingFinding, unconfirmed: Sequence[StandingFinding]
) -> BottleneckFinding:
    """A finding with an alternative for the same wait that has not been observed often enough."""
    finding = standing.finding
    others = [
        each.finding
        for each in unconfirmed
        if each.finding.cause is not finding.cause and _explains(each.finding, finding)
    ]
    if finding.alternative is not None or not others:
        return finding
    other = max(others, key=lambda each: each.ttft_cost_seconds)
    why = "; ".join(each.text for each in other.evidence[:1])
    text = f"{why}; observed only just now" if why else "observed only just now"
    return replace(finding, alternative=Alternative(other.cause, text))


def _explains(now: BottleneckFinding, before: BottleneckFinding) -> bool:
    """Whether two findings explain the same wait."""
    if now.cause is before.cause or {now.cause, before.cause} == BEFORE_ENGINES:
        return True
    if now.role is not before.role or {now.cause, before.cause} & BEFORE_ENGINES:
        return False
    return not now.engines or not before.engines or bool(set(now.engines) & set(before.engines))


def _ordered(standing: Sequence[StandingFinding]) -> list[StandingFinding]:
    """Findings by cost, largest first; of two with similar cost, the longer lasting one first."""
    ranked = sorted(standing, key=lambda each: -each.finding.ttft_cost_seconds)
    for number in range(len(ranked) - 1):
        one, other = ranked[number], ranked[number + 1]
        close = other.finding.ttft_cost_seconds >= _KEPT_ORDER * one.finding.ttft_cost_seconds
        if close and other.rounds > one.rounds + 2:
            ranked[number], ranked[number + 1] = other, one
    return ranked
