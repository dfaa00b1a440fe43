"""Which findings are reported soon, which only once they cost enough, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.state import DiagnosisState, StandingFinding, settled
from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    Cause,
    EngineKey,
    ModelKey,
    Remedy,
    RemedyKind,
)
from disagg_exporter.model import Role
from support.diagnosed_lines import PREFILL, TARGETS
from support.diagnosis_windows import Line, WindowMaker

MODEL = ModelKey("c", "", "m")
DECODE = (Line("d0", role="decode", requests=6.0, wait_seconds=0.06, transfers=6.0),)


def at_first_sight(*lines: Line, **maker: object) -> list[Cause]:
    """The findings of the first of several rounds."""
    window = WindowMaker(**maker).make(lines)  # type: ignore[arg-type] # by name
    (found,), _ = diagnose(window, TARGETS, DiagnosisState())
    return [finding.cause for finding in found.findings]


def test_demand_shifted_from_a_gone_engine_to_a_full_one_is_found_in_the_first_round() -> None:
    full = {"requests": 4.0, "token_seconds": 1.2e-4, "waiting": 20.0, "wait_seconds": 3.0}
    lines = (
        replace(PREFILL[0], then={"is_up": False}),
        replace(PREFILL[1], requests=2.0, then=full),
    )

    found = at_first_sight(*lines, *DECODE, noise=0.3, seed=1, onset_seconds=530.0)

    assert found == [Cause.DEMAND]


def test_gone_engines_are_named_if_the_remaining_ones_are_overloaded() -> None:
    full = {"requests": 6.0, "token_seconds": 1.2e-4, "waiting": 20.0, "wait_seconds": 3.0}
    gone = [replace(PREFILL[number], then={"is_up": False}) for number in (0, 1)]
    lines = (*gone, replace(PREFILL[2], requests=2.0, then=full), *DECODE)

    (found,), _ = diagnose(WindowMaker(onset_seconds=530.0).make(lines), TARGETS)

    assert "p0, p1 are gone" in found.text


@pytest.mark.parametrize(
    ("wait_seconds", "requests", "found"),
    [(0.8, 4.0, [Cause.DEMAND]), (0.5, 4.0, []), (0.8, 2.5, [])],
)
def test_a_gone_engine_is_missed_once_the_others_are_busy_and_requests_wait_longer(
    wait_seconds: float, requests: float, found: list[Cause]
) -> None:
    then = {"requests": requests, "wait_seconds": wait_seconds}
    lines = (
        replace(PREFILL[0], then={"is_up": False}),
        *(replace(line, token_seconds=1.1e-4, then=then) for line in PREFILL[1:]),
    )

    (said,), _ = diagnose(WindowMaker(onset_seconds=530.0).make((*lines, *DECODE)), TARGETS)

    assert [each.cause for each in said.findings] == found


def test_a_slow_engine_from_which_requests_are_routed_away_is_still_found() -> None:
    ill = replace(PREFILL[0], then={"slowness": 2.0, "requests": 0.4, "wait_seconds": 0.75})

    assert at_first_sight(ill, *PREFILL[1:], *DECODE) == [Cause.SLOW_GPU]


def test_very_long_prompts_with_negligible_cost_are_not_found() -> None:
    cheap = [replace(p, then={"wait_seconds": 0.48, "prompt_spread": 0.25}) for p in PREFILL]

    assert at_first_sight(*cheap, *DECODE) == []


def test_an_engine_that_deviates_from_its_model_like_its_peers_is_not_slow() -> None:
    off = [
        replace(p, slowness=slowness, then={"wait_seconds": 1.6})
        for p, slowness in zip(PREFILL, (1.25, 1.17, 1.17), strict=True)
    ]
    window = WindowMaker().make((*off, *DECODE))

    (found,), _ = diagnose(window, TARGETS)

    assert Cause.SLOW_GPU not in [each.cause for each in found.findings]


def test_an_engine_that_has_only_become_as_slow_as_its_peers_is_not_slow() -> None:
    caught_up = replace(PREFILL[0], slowness=0.8, then={"slowness": 1.0, "wait_seconds": 1.6})
    others = [replace(p, then={"wait_seconds": 1.6}) for p in PREFILL[1:]]
    window = WindowMaker().make((caught_up, *others, *DECODE))

    (found,), _ = diagnose(window, TARGETS)

    assert Cause.SLOW_GPU not in [each.cause for each in found.findings]


def test_engines_that_became_slower_together_are_not_slow() -> None:
    were_faster = [
        replace(p, slowness=0.8, then={"slowness": 1.0, "wait_seconds": 1.6}) for p in PREFILL
    ]
    window = WindowMaker().make((*were_faster, *DECODE))

    (found,), _ = diagnose(window, TARGETS)

    assert Cause.SLOW_GPU not in [each.cause for each in found.findings]


def test_a_router_wait_measured_below_zero_that_rises_to_zero_is_not_found() -> None:
    lines = (*PREFILL, *DECODE)

    assert at_first_sight(*lines, front_seconds=(-0.3, 0.02)) == []
    assert at_first_sight(*lines, front_seconds=(0.02, 0.34)) != []


def test_a_cause_likely_in_two_of_three_rounds_is_found() -> None:
    judged = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(), waits(1.0), 0.0)
    shown, state = judged.findings, judged.remembered
    assert shown == ()
    judged = settled(MODEL, [], DiagnosisState(15.0, state), waits(1.0), 0.0)
    shown, state = judged.findings, judged.remembered
    assert shown == ()

    shown = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(30.0, state), waits(1.0), 0.0).findings

    assert shown == (FOUND,)


def test_a_likely_cause_is_suspected_in_its_first_round_and_found_in_the_second() -> None:
    judged = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(), waits(1.0), 0.0)
    assert (judged.findings, judged.suspects) == ((), (FOUND,))

    judged = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(0.0, judged.remembered), waits(1.0), 0.0)

    assert (judged.findings, judged.suspects) == ((FOUND,), ())


@pytest.mark.parametrize(("new_scrapes", "shown"), [(1, 0), (3, 1)])
def test_several_new_scrapes_confirm_a_finding_as_two_rounds_do(
    new_scrapes: int, shown: int
) -> None:
    """Rounds are 15 s apart: with a scrape every 5 s, the second has three new scrapes."""
    state = settled(MODEL, [(FOUND, 4.0)], DiagnosisState(), waits(1.0), 0.0).remembered

    judged = settled(
        MODEL, [(FOUND, 4.0)], DiagnosisState(0.0, state), waits(1.0), 0.0, new_scrapes
    )

    assert judged.findings == (FOUND,) * shown


def test_a_finding_keeps_its_engine_until_two_rounds_in_a_row_name_another() -> None:
    one, other = (
        replace(FOUND, engines=(EngineKey("node-0", name),)) for name in ("mixed-0", "mixed-1")
    )
    state = settled(MODEL, [(one, 9.0)], DiagnosisState(), waits(1.0), 0.0).remembered
    named = []
    for said in (other, one, other, other, other, one):
        judged = settled(MODEL, [(said, 9.0)], DiagnosisState(0.0, state), waits(1.0), 0.0)
        state = judged.remembered
        named += [finding.engines[0].engine for finding in judged.findings]

    assert named == ["mixed-0", "mixed-0", "mixed-0", "mixed-1", "mixed-1", "mixed-1"]


def test_a_cause_within_noise_stays_suspected_however_often_it_recurs() -> None:
    state = DiagnosisState()
    for look in range(5):
        judged = settled(MODEL, [(FOUND, 0.0)], state, waits(1.0), 0.0)
        state = DiagnosisState(15.0 * look, judged.remembered)

        assert (judged.findings, judged.suspects, judged.remembered) == ((), (FOUND,), ())


def test_a_wait_explained_by_a_finding_has_no_other_suspects() -> None:
    full, gone = FOUND, replace(FOUND, cause=Cause.LATENCY_FLOOR)
    long = replace(FOUND, cause=Cause.LONG_PROMPTS)

    judged = settled(
        MODEL, [(full, 9.0), (long, 0.0), (gone, 0.0)], DiagnosisState(), waits(1.0), 0.0
    )

    assert judged.findings == (full,)
    assert [each.cause for each in judged.suspects] == [Cause.LATENCY_FLOOR]


def test_a_cause_likely_once_is_forgotten_after_two_rounds() -> None:
    state = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(), waits(1.0), 0.0).remembered
    for look in (1, 2):
        state = settled(MODEL, [], DiagnosisState(15.0 * look, state), waits(1.0), 0.0).remembered

    assert state == ()


def test_an_engine_without_peers_is_compared_with_its_own_cost_model_only() -> None:
    of_two = replace(PREFILL[0], gpus=2, clocks=(1.98e9,) * 2, slowness=1.25)
    lines = (replace(of_two, then={"wait_seconds": 1.6}), *PREFILL[1:])

    assert at_first_sight(*lines, *DECODE) == []
    (found,), _ = diagnose(WindowMaker().make((*lines, *DECODE)), TARGETS)
    assert [each.cause for each in found.findings] == [Cause.SLOW_GPU]


def test_a_queue_at_one_engine_beside_idle_peers_is_found_despite_noise() -> None:
    given = {"requests": 3.6, "token_seconds": 1.4e-4, "waiting": 4.0, "wait_seconds": 1.6}
    lines = (
        replace(PREFILL[0], then=given),
        *(replace(p, then={"requests": 1.2}) for p in PREFILL[1:]),
    )
    window = WindowMaker(noise=0.4, seed=4, onset_seconds=510.0).make((*lines, *DECODE))

    (found,), _ = diagnose(window, TARGETS)

    assert [each.cause for each in found.findings][:1] == [Cause.ROUTING]


def test_a_doubtful_cause_that_becomes_likely_is_found() -> None:
    doubted = settled(MODEL, [(FOUND, 4.0)], DiagnosisState(), waits(1.0), 0.0).remembered

    shown = settled(MODEL, [(FOUND, 5.0)], DiagnosisState(15.0, doubted), waits(1.0), 0.0).findings

    assert shown == (FOUND,)


def test_a_finding_without_evidence_persists_longer_while_waits_continue() -> None:
    assert looks_it_stands(wait_seconds=0.9) == 8
    assert looks_it_stands(wait_seconds=0.1) == 2


def looks_it_stands(wait_seconds: float) -> int:
    """The number of rounds that a finding is shown after its evidence has gone."""
    standing: tuple[StandingFinding, ...] = (StandingFinding(MODEL, FOUND, 3, 1.0),)
    for look in range(20):
        past = DiagnosisState(15.0 * look, standing)
        judged = settled(MODEL, [], past, waits(wait_seconds), 0.0)
        shown, standing = judged.findings, judged.remembered
        if not shown:
            return look
    raise AssertionError("it stands for ever")


def waits(seconds: float) -> Callable[[BottleneckFinding], float]:
    return lambda _: seconds


FOUND = BottleneckFinding(
    Cause.KV_FULL,
    Role.PREFILL,
    (),
    0.9,
    1.0,
    1.0,
    10.0,
    (),
    Remedy(RemedyKind.NONE, "wait"),
    "",
)
