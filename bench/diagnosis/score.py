"""Scores diagnoses against the injected fault, per scenario and overall."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from bench.diagnosis.play import WARM_SECONDS, Played, Round, Said
from bench.diagnosis.scenario import Scenario

from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of one scenario. Without a fault only `blamed` and `undecided` count.

    `delay_seconds`: from the onset until the first round whose first finding is right, inf without
    any. Of two faults either may be first, and `cause_in_two` requires both among the first two.
    Without a finding a suspect counts as second.
    """

    engine: bool
    cause: bool
    cause_in_two: bool
    undecided: bool
    blamed: bool
    delay_seconds: float
    standing: Round | None


def score(played: Played) -> Scored:
    """Judge the round at the deadline after the onset, or all rounds of a clean scenario.

    If a fault hurts later than at its onset, its deadline is later by as much.
    """
    scenario, truth = played.scenario, played.truth
    found = [each for each in played.rounds if each.outcome is DiagnosisOutcome.FOUND]
    if not truth.causes:
        after = [
            each
            for each in found
            if each.t_seconds > WARM_SECONDS and not _is_slight(played, each.findings[0])
        ]
        last = played.rounds[-1] if played.rounds else None
        undecided = any(
            each.outcome is DiagnosisOutcome.UNDECIDED and each.t_seconds > WARM_SECONDS
            for each in played.rounds
        )
        judged = after[0] if after else last
        return Scored(False, False, False, undecided, bool(after), math.inf, judged)
    onset_seconds = scenario.onset_seconds
    hurt_seconds = played.hurt_seconds if math.isfinite(played.hurt_seconds) else 0.0
    deadline_seconds = onset_seconds + hurt_seconds + scenario.deadline_seconds
    by_then = [each for each in played.rounds if each.t_seconds <= deadline_seconds]
    standing = by_then[-1] if by_then else None
    findings = standing.findings if standing is not None else ()
    either = [played] if played.second is None else [played, replace(played, truth=played.second)]

    def is_first(each: Round) -> bool:
        return any(_is_right(one, each.findings[0]) for one in either)

    return Scored(
        engine=bool(findings)
        and any(
            is_engine_right(one, findings[0])
            for one in either
            if len(either) == 1 or findings[0].cause in one.truth.causes
        ),
        cause=bool(findings) and any(findings[0].cause in one.truth.causes for one in either),
        cause_in_two=all(
            any(cause in one.truth.causes for cause in _first_two(standing)) for one in either
        ),
        undecided=standing is None or standing.outcome is DiagnosisOutcome.UNDECIDED,
        blamed=any(each.t_seconds < onset_seconds for each in found),
        delay_seconds=min(
            (
                each.t_seconds - onset_seconds
                for each in found
                if each.t_seconds >= onset_seconds and is_first(each)
            ),
            default=math.inf,
        ),
        standing=standing,
    )


def _first_two(standing: Round | None) -> tuple[Cause, ...]:
    if standing is None:
        return ()
    return standing.ranked[: 2 if standing.findings else 1]


def is_engine_right(played: Played, said: Said) -> bool:
    """Whether a finding names the engines that the fault affects, or the pool.

    All engines of a role are its pool. A fault between pools may be attributed to either.
    """
    scenario, truth = played.scenario, played.truth
    named = said.engines or scenario.pool(said.role)
    if not truth.engines:
        is_between = bool(_BETWEEN & set(truth.causes))
        roles = _POOLS if is_between else (_entry_role(scenario),)
        if truth.is_chance:
            return named <= scenario.pool(roles[0])
        return named in truth.also or any(named == scenario.pool(role) for role in roles)
    pools = [scenario.pool(role) for role in _POOLS]
    return named == truth.engines or any(
        named == engines if engines else named in pools for engines in truth.also
    )


_POOLS = (Role.PREFILL, Role.MIXED, Role.DECODE)
_BETWEEN = {Cause.KV_TRANSFER, Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT}


def _entry_role(scenario: Scenario) -> Role:
    return Role.MIXED if scenario.pool(Role.MIXED) else Role.PREFILL


def _is_slight(played: Played, said: Said) -> bool:
    """Whether a finding is right about a fault whose cost is too small to count, but not noise.

    Of two faults, each of which costs too little alone, either.
    """
    scenario = played.scenario
    truths = [scenario.truth]
    if scenario.second is not None:
        truths.append(scenario.second.truth)
    return played.cost_seconds > played.noise_seconds and any(
        _is_right(replace(played, truth=truth), said) for truth in truths
    )


def _is_right(played: Played, said: Said) -> bool:
    return said.cause in played.truth.causes and is_engine_right(played, said)


@dataclass(slots=True)
class Tally:
    """Counts of the scenarios of one cause."""

    scenarios: int = 0
    engine: int = 0
    cause: int = 0
    cause_in_two: int = 0
    undecided: int = 0
    in_time: int = 0
    delays: list[float] = field(default_factory=list)
    taken_for: Counter[str] = field(default_factory=Counter)

    def add(self, played: Played, scored: Scored) -> None:
        """Count a scenario."""
        self.scenarios += 1
        self.engine += scored.engine
        self.cause += scored.cause
        self.cause_in_two += scored.cause_in_two
        self.undecided += scored.undecided
        self.in_time += scored.delay_seconds <= played.scenario.deadline_seconds
        if played.scenario.onset_seconds > 0:
            self.delays.append(scored.delay_seconds)
        if not scored.cause:
            self.taken_for[said_of(scored)] += 1

    @property
    def median_delay_seconds(self) -> float:
        """Median delay of the right answer."""
        return median(self.delays) if self.delays else math.nan


def said_of(scored: Scored) -> str:
    """The first cause at the deadline, or the outcome without one."""
    standing = scored.standing
    if standing is None:
        return "nothing"
    return str(standing.findings[0].cause if standing.findings else standing.outcome)


def is_case_right(played: Played, scored: Scored) -> bool:
    """Whether a case is diagnosed rightly, or is undecided and names the missing evidence."""
    if not played.truth.causes:
        return not scored.blamed
    is_honest = scored.undecided and scored.standing is not None and scored.standing.missing
    return (scored.engine and scored.cause) or bool(is_honest)


TWO = "two at once"


def by_cause(all_played: Iterable[tuple[Played, Scored]]) -> dict[str, Tally]:
    """Tallies of the scenarios with a fault, each under the first of its causes."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for played, scored in all_played:
        if played.truth.causes:
            name = str(played.truth.causes[0]) if played.second is None else TWO
            tallies[name].add(played, scored)
    return {name: tallies[name] for name in (*map(str, Cause), TWO) if name in tallies}


def describe(scenario: Scenario) -> str:
    """The simulated deployment in one line."""
    engines = scenario.cluster.engines
    roles = Counter(str(engine.role) for engine in engines)
    first, pools = engines[0], "+".join(f"{n} {role}" for role, n in roles.items())
    return (
        f"{pools} of {first.model.name.split('/')[-1]} on {len(first.gpus)} x {first.gpu.name}, "
        f"{len({engine.node for engine in engines})} nodes, "
        f"each {scenario.scrape_seconds:g} s, target {scenario.targets.ttft_seconds:.2f} s"
    )
