"""One engine with a lasting queue while hardly a request waits at its peers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.causes import prompt_work
from disagg_cluster.planner.diagnose.causes.overload import has_only_queue
from disagg_cluster.planner.diagnose.causes.prompt_work import FACTORS, explained_by_lengths
from disagg_cluster.planner.diagnose.causes.suspicion import LIKELY_Z, Adverse
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import LengthsAt
from disagg_cluster.planner.diagnose.state import DiagnosisState
from disagg_cluster.planner.diagnose.verdict.values import Cause, DiagnosisOutcome
from support.diagnosed_lines import DECODE, PREFILL, TARGETS
from support.diagnosis_windows import WindowMaker

LONGER = LengthsAt(onset=5, longer=0.5, gathered_z=0.7, mean_z=1.9)


def view(*waiting: tuple[float, ...], target_seconds: float = 2.0) -> ModelView:
    """Engines with these queues in the last blocks."""
    return cast(
        "ModelView",
        SimpleNamespace(
            blocks=lambda _name, _rows: np.array(waiting, float).reshape(len(waiting), 2),
            targets=Targets(target_seconds, 0.05),
        ),
    )


@pytest.mark.parametrize(
    ("queues", "wait_seconds", "alone"),
    [
        (((7.0, 9.0), (0.0, 1.0), (0.0, 0.0)), 3.0, [True, False, False]),
        (((7.0, 9.0), (0.0, 1.0), (0.0, 0.0)), 1.0, [False, False, False]),
        (((0.0, 19.0), (0.0, 1.0), (0.0, 0.0)), 3.0, [False, False, False]),
        (((7.0, 9.0), (0.0, 4.0), (0.0, 0.0)), 3.0, [False, False, False]),
        (((7.0, np.nan), (0.0, 1.0), (0.0, 0.0)), 3.0, [False, False, False]),
        (((7.0, 9.0),), 3.0, [False]),
        ((), 3.0, []),
    ],
    ids=["alone", "in_time", "just_now", "not_alone", "unknown", "no_peers", "no_engines"],
)
def test_a_late_engine_has_only_queue_if_only_it_has_a_lasting_queue(
    queues: tuple[tuple[float, ...], ...], wait_seconds: float, alone: list[bool]
) -> None:
    waits = np.full(len(queues), wait_seconds)

    assert has_only_queue(view(*queues), np.arange(len(queues)), waits).tolist() == alone


def test_without_a_target_the_queue_decides() -> None:
    queues = ((7.0, 9.0), (0.0, 1.0))
    untargeted = view(*queues, target_seconds=float("inf"))

    assert has_only_queue(untargeted, np.arange(2), np.zeros(2)).tolist() == [True, False]


def eliminated(
    monkeypatch: pytest.MonkeyPatch, lengths: LengthsAt, **grown: float
) -> tuple[float, float]:
    """The growth of prompts, and its z, at that of two engines that has a queue."""
    monkeypatch.setattr(prompt_work, "_counts_apart", lambda _view, _rows: np.ones((2, 2, 8)))
    monkeypatch.setattr(prompt_work, "_lengths_at", lambda *_: lengths)
    rows = np.arange(2)
    found = {
        name: Adverse(np.array([grown.get(name, 0.0), 0.0]), np.zeros(2), np.zeros(2, np.intp))
        for name in FACTORS
    }
    waits = cast(
        "Waits", SimpleNamespace(rows=rows, now=np.array([3.0, 0.5]), z=np.array([8.0, 0.0]))
    )
    longer = explained_by_lengths(view((7.0, 9.0), (0.0, 1.0)), waits, found)
    return float(longer.size[0]), float(longer.z[0])


def test_longer_prompts_are_what_is_left_to_explain_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert eliminated(monkeypatch, LONGER) == (0.5, LIKELY_Z)


@pytest.mark.parametrize("factor", [name for name in FACTORS if name != "prompt_length"])
def test_a_queue_that_another_factor_explains_needs_no_longer_prompts(
    monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    assert eliminated(monkeypatch, LONGER, **{factor: 0.3}) == (0.0, 0.0)


@pytest.mark.parametrize("change", [{"mean_z": 1.0}, {"longer": 0.1}])
def test_a_queue_without_longer_prompts_stays_unexplained(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, float]
) -> None:
    assert eliminated(monkeypatch, replace(LONGER, **change)) == (0.0, 0.0)


def test_a_queue_that_nothing_explains_is_undecided_and_names_the_engine() -> None:
    late = replace(PREFILL[0], then={"waiting": 20.0, "wait_seconds": 6.0})

    (found,), _ = diagnose(WindowMaker().make((late, *PREFILL[1:], *DECODE)), TARGETS)

    assert found.outcome is DiagnosisOutcome.UNDECIDED
    assert "at p0 and hardly beside it, and no exported metric explains why" in found.text


def test_a_queue_whose_cause_may_still_be_chance_is_not_called_nothing() -> None:
    """As so few requests were given to it."""
    usual, *others = [replace(line, requests=0.6) for line in PREFILL]
    late = replace(usual, then={"waiting": 20.0, "wait_seconds": 6.0, "requests": 0.9})
    window = WindowMaker().make((late, *others, *DECODE))
    (first,), once = diagnose(window, TARGETS, DiagnosisState(window.now_seconds - 15.0))

    (again,), _ = diagnose(window, TARGETS, once)

    assert first.outcome is DiagnosisOutcome.UNDECIDED
    assert first.text.endswith(
        "at p0 and hardly beside it, and what may explain it must be observed again"
    )
    assert [each.cause for each in first.suspects] == [Cause.ROUTING]
    assert [each.cause for each in again.findings] == [Cause.ROUTING]
