"""Which findings are believed and kept from round to round."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.planner.diagnose.state import DiagnosisState, Settled, settled
from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    Cause,
    EngineKey,
    ModelKey,
    Remedy,
    RemedyKind,
)
from disagg_exporter.model import Role

MODEL = ModelKey("", "", "m")
ROUND_SECONDS = 15.0
SURE, LIKELY, WEAK = 9.0, 5.0, 4.1


def finding(
    *engines: str,
    cause: Cause = Cause.SLOW_GPU,
    role: Role = Role.DECODE,
    cost: float = 1.0,
    confidence: float = 0.9,
) -> BottleneckFinding:
    return BottleneckFinding(
        cause,
        role,
        tuple(EngineKey("n", engine) for engine in engines),
        confidence,
        cost,
        cost,
        1000.0,
        (),
        Remedy(RemedyKind.NONE, "wait"),
        "",
    )


def rounds(
    *observed: Sequence[tuple[BottleneckFinding, float]],
    wait_seconds: float = 1.0,
    forgotten_seconds: float = 0.0,
) -> list[Settled]:
    """One result for each round, 15 s apart."""
    found: list[Settled] = []
    state: DiagnosisState | None = DiagnosisState(985.0)
    for number, each in enumerate(observed):
        found.append(settled(MODEL, each, state, lambda _: wait_seconds, forgotten_seconds))
        state = DiagnosisState(1000.0 + ROUND_SECONDS * number, found[-1].remembered)
    return found


def named(result: Settled) -> list[list[str]]:
    return [[key.engine for key in each.engines] for each in result.findings]


def test_two_findings_of_one_cause_and_role_keep_their_engines() -> None:
    both = [(finding("d1"), SURE), (finding("d2", cost=0.5), SURE)]

    assert [named(each) for each in rounds(both, both, both)] == [[["d1"], ["d2"]]] * 3


def test_two_findings_of_one_cause_and_role_are_believed_as_soon_as_one() -> None:
    one, other = finding("d1"), finding("d2", cost=0.5)
    for strength, needed in ((LIKELY, 2), (WEAK, 3)):
        both = [(one, strength), (other, strength)]

        last = rounds(*[both] * needed)[-1]

        assert named(last) == [["d1"], ["d2"]]


def test_a_finding_that_returns_continues_the_one_of_its_engines() -> None:
    both = [(finding("d1"), SURE), (finding("d2", cost=0.5), SURE)]

    last = rounds(both, [(finding("d2", cost=0.5), SURE)])[-1]

    assert named(last)[0] == ["d2"]


def test_a_finding_keeps_its_engines_until_two_rounds_name_others() -> None:
    before, now = [(finding("d1"), SURE)], [(finding("d2"), SURE)]

    assert [named(each) for each in rounds(before, now, now)] == [[["d1"]], [["d1"]], [["d2"]]]


def test_a_finding_without_a_known_wait_ends_after_two_rounds_without_evidence() -> None:
    sure = [(finding("p0", cause=Cause.COLD_START, role=Role.PREFILL), SURE)]

    # Its onset is older than the baseline of the window.
    found = rounds(sure, [], [], [], wait_seconds=0.0, forgotten_seconds=2000.0)

    assert [len(each.findings) for each in found] == [1, 1, 1, 0]


def test_an_old_finding_is_kept_while_requests_wait_as_long() -> None:
    sure = [(finding("p0"), SURE)]

    found = rounds(sure, *[[]] * 10, wait_seconds=1.0, forgotten_seconds=2000.0)

    assert len(found[-1].findings) == 1


def test_a_finding_that_ended_is_believed_at_once_when_it_returns_soon() -> None:
    believed = [(finding("d1"), SURE)]
    again = [(finding("d1"), WEAK)]
    for pause, returns in ((10, True), (11, False)):
        found = rounds(believed, *[[]] * pause, again, wait_seconds=0.0)

        assert [bool(each.findings) for each in found[:5]] == [True, True, True, False, False]
        assert bool(found[-1].findings) is returns


def test_a_finding_continues_while_it_is_suspected_only() -> None:
    seen, suspected = [(finding("d1"), SURE)], [(finding("d1", cost=0.6), 0.0)]

    found = rounds(seen, *[suspected] * 9, wait_seconds=0.0)

    assert [named(each) for each in found] == [[["d1"]]] * 10
    assert found[-1].findings[0].ttft_cost_seconds == 0.6
    assert found[-1].suspects == ()


def test_a_round_that_only_suspects_a_finding_neither_counts_nor_begins_anew() -> None:
    weak, suspected, likely = ([(finding("d1"), z)] for z in (WEAK, 0.0, LIKELY))

    assert [named(each) for each in rounds(weak, suspected, likely)] == [[], [], [["d1"]]]
    assert [named(each) for each in rounds(weak, suspected, suspected)] == [[], [], []]
    assert [each.engine for each in rounds(weak, suspected)[-1].suspects[0].engines] == ["d1"]


def confidences(results: Sequence[Settled]) -> list[float]:
    return [each.confidence for result in results for each in result.findings]


def test_a_finding_is_less_sure_only_once_two_rounds_in_a_row_are() -> None:
    sure, unsure = ([(finding("d1", confidence=each), SURE)] for each in (0.95, 0.7))

    assert confidences(rounds(sure, unsure, sure, unsure)) == [0.95] * 4
    assert confidences(rounds(sure, unsure, unsure, sure)) == [0.95, 0.95, 0.7, 0.95]


def test_a_finding_that_is_suspected_only_stays_as_sure_as_it_was() -> None:
    seen, suspected = [(finding("d1"), SURE)], [(finding("d1", confidence=0.5), 0.0)]

    assert confidences(rounds(seen, suspected, seen, suspected)) == [0.9] * 4
