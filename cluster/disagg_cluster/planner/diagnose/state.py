"""What one diagnosis leaves to the next, so that findings neither flap nor come of one look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    BottleneckFinding,
    Cause,
    ModelKey,
)
from disagg_exporter.model import Role

# Who is this sure is believed at first sight, who is likely at the second, the rest at the third.
_SURE, _LIKELY, _BELIEVED, _LIKELY_LOOKS = 8.0, 4.6, 3, 2
# A look that several new scrapes confirm counts as two.
_MOST_PER_LOOK = 2
# A finding that is not seen any more stands for so many looks, unless another takes its place.
# While requests there wait as long as they did it stands for some minutes.
_HELD_LOOKS, _HELD_WHILE_LONG = 2, 8
# Of what is not believed yet no more is told.
_MOST_SUSPECTS = 2
_KEPT_ORDER = 0.8
_BEFORE_ENGINES = {Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT}
# Of a wait that was too long, what is still too long.
_AS_LONG = 0.7


@dataclass(frozen=True, slots=True)
class StandingFinding:
    """A finding as it was seen last, and for how many looks it has been missing or seen.

    `wait_seconds` is how long requests then waited where it is. `is_disputed`: the last look named
    other engines; the finding is that of the look before.
    """

    model: ModelKey
    finding: BottleneckFinding
    looks: int
    wait_seconds: float
    missed: int = 0
    is_disputed: bool = False

    @property
    def key(self) -> tuple[ModelKey, Cause, Role]:
        """What makes two findings the same: engines may join or leave."""
        return self.model, self.finding.cause, self.finding.role


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    """What stood after the last look."""

    now_seconds: float = 0.0
    standing: tuple[StandingFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Which findings stand now, in their order; which are not sure yet; what is remembered."""

    findings: tuple[BottleneckFinding, ...]
    suspects: tuple[BottleneckFinding, ...]
    remembered: tuple[StandingFinding, ...]


def settled(
    model: ModelKey,
    seen: Sequence[tuple[BottleneckFinding, float]],
    past: DiagnosisState | None,
    wait_seconds: Callable[[BottleneckFinding], float],
    forgotten_seconds: float,
    new_scrapes: int = 1,
) -> Settled:
    """Judge what one look found by what was found before.

    Args:
        model: Whose findings they are.
        seen: What this look found, cost most first, each with its strength; what has none is a
            suspect, however often it is seen.
        past: What stood before; None where nobody looked: then one look must do, if it is likely.
        wait_seconds: How long requests wait now where a finding is.
        forgotten_seconds: What began before this Unix time has no past in the window any more. It
            stands as long as requests wait as they did.
        new_scrapes: How many scrapes came since the look before.
    """
    known = {each.key: each for each in (past.standing if past else ()) if each.model == model}
    remembered = []
    for finding, strength in seen:
        if strength <= 0:
            continue
        before = known.pop((model, finding.cause, finding.role), None)
        looks = 1 if before is None else before.looks + min(new_scrapes, _MOST_PER_LOOK)
        if strength >= _SURE or (past is None and strength >= _LIKELY):
            looks = max(looks, _BELIEVED)
        elif strength >= _LIKELY:
            looks = max(looks, _LIKELY_LOOKS if before is None else _BELIEVED)
        since = finding.since_seconds if before is None else before.finding.since_seconds
        finding = replace(finding, since_seconds=since)
        is_disputed = before is not None and _is_disputed(before, finding)
        if before is not None and is_disputed:
            finding = before.finding
        remembered.append(
            StandingFinding(model, finding, looks, wait_seconds(finding), is_disputed=is_disputed)
        )
    believed = [each for each in remembered if each.looks >= _BELIEVED]
    for gone in known.values():
        is_old = gone.finding.since_seconds < forgotten_seconds
        lasts = wait_seconds(gone.finding) >= _AS_LONG * gone.wait_seconds
        held_looks = _HELD_WHILE_LONG if lasts else _HELD_LOOKS
        if gone.looks >= _BELIEVED and lasts and is_old:
            remembered.append(gone)
        elif gone.looks >= _BELIEVED and gone.missed < held_looks and not believed:
            remembered.append(replace(gone, missed=gone.missed + 1))
        elif _LIKELY_LOOKS <= gone.looks < _BELIEVED and not gone.missed:
            # What is just strong enough is so in two looks of three.
            remembered.append(replace(gone, missed=1))
    shown = [
        each
        for each in remembered
        if each.looks >= _BELIEVED
        and (each in believed or not any(_explains(one.finding, each.finding) for one in believed))
    ]
    doubted = [each for each in remembered if each.looks < _BELIEVED and not each.missed]
    return Settled(
        tuple(_with_doubt(each, doubted) for each in _ordered(shown)),
        _suspects(shown, remembered, [finding for finding, strength in seen if strength <= 0]),
        tuple(remembered),
    )


def _is_disputed(before: StandingFinding, now: BottleneckFinding) -> bool:
    """Whether one look alone names other engines than the finding that stands.

    Alerts carry the engine as a label: they would never last if it changed with each look.
    """
    is_believed = before.looks >= _BELIEVED and not before.is_disputed
    return is_believed and now.engines != before.finding.engines


def _suspects(
    shown: Sequence[StandingFinding],
    remembered: Sequence[StandingFinding],
    weak: Sequence[BottleneckFinding],
) -> tuple[BottleneckFinding, ...]:
    """What is seen and not believed: first what needs but another look, then what cost most.

    What is said of the same wait as a finding is none: that wait has been explained.
    """
    waiting = [each for each in remembered if each.looks < _BELIEVED]
    waiting.sort(key=lambda each: (-each.looks, -each.finding.ttft_cost_seconds))
    found: list[BottleneckFinding] = []
    for finding in (*(each.finding for each in waiting), *weak):
        explained = any(_explains(each.finding, finding) for each in shown)
        if not explained and all(finding.cause is not each.cause for each in found):
            found.append(finding)
    return tuple(found[:_MOST_SUSPECTS])


def _with_doubt(standing: StandingFinding, doubted: Sequence[StandingFinding]) -> BottleneckFinding:
    """A finding with what may explain the same wait, but has not been seen often enough."""
    finding = standing.finding
    others = [
        each.finding
        for each in doubted
        if each.finding.cause is not finding.cause and _explains(each.finding, finding)
    ]
    if finding.alternative is not None or not others:
        return finding
    other = max(others, key=lambda each: each.ttft_cost_seconds)
    why = "; ".join(each.text for each in other.evidence[:1])
    text = f"{why}; seen only just now" if why else "seen only just now"
    return replace(finding, alternative=Alternative(other.cause, text))


def _explains(now: BottleneckFinding, before: BottleneckFinding) -> bool:
    """Whether what is found now is said of the same wait as what was found before."""
    if now.cause is before.cause or {now.cause, before.cause} == _BEFORE_ENGINES:
        return True
    if now.role is not before.role or {now.cause, before.cause} & _BEFORE_ENGINES:
        return False
    return not now.engines or not before.engines or bool(set(now.engines) & set(before.engines))


def _ordered(standing: Sequence[StandingFinding]) -> list[StandingFinding]:
    """Cost most first; of two that cost about the same, who has stood longer."""
    ranked = sorted(standing, key=lambda each: -each.finding.ttft_cost_seconds)
    for number in range(len(ranked) - 1):
        one, other = ranked[number], ranked[number + 1]
        close = other.finding.ttft_cost_seconds >= _KEPT_ORDER * one.finding.ttft_cost_seconds
        if close and other.looks > one.looks + 2:
            ranked[number], ranked[number + 1] = other, one
    return ranked
