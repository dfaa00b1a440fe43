"""Slow mixed steps of engines that have hardly any other steps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.causes import slow_steps
from disagg_cluster.planner.diagnose.causes.mixed_steps import (
    as_slow_mixed,
    mixing_evidence,
    slowness_by_kind,
)
from disagg_cluster.planner.diagnose.causes.slow_steps import SlowSteps, why_each_is_slow
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence
from disagg_exporter.model import Role

ONSET, SLOW = 6, 0.45


@dataclass(frozen=True)
class Fleet:
    """Three mixed engines, by block; from the onset on the first has no steps without prompts."""

    in_onset_block: float

    def rows_of(self, role: Role) -> Rows:
        return np.arange(3) if role is Role.MIXED else np.arange(0)

    def changed(self, name: str, rows: Rows) -> SimpleNamespace:
        levels = np.zeros((3, 10))
        if name == "mixed_slowness":
            levels[:, ONSET + 1 :] = SLOW
            levels[:, ONSET] = self.in_onset_block
        if name == "pure_slowness":
            levels[0, ONSET:] = np.nan
        return SimpleNamespace(levels=levels[rows])


@pytest.mark.parametrize("in_onset_block", [0.08, 0.4])
def test_slow_mixed_steps_are_measured_after_the_block_of_their_onset(
    in_onset_block: float,
) -> None:
    view = cast("ModelView", Fleet(in_onset_block))

    mixed, pure = slowness_by_kind(view, np.array([0]), ONSET)

    assert mixed > 0.35
    assert pure == pytest.approx(0.0)


@dataclass(frozen=True)
class Levels:
    """Mixed engines by how slow their mixed steps are from the onset on."""

    slow: tuple[float, ...]

    def changed(self, _name: str, rows: Rows) -> SimpleNamespace:
        levels = np.zeros((len(self.slow), 10))
        levels[:, ONSET:] = np.array(self.slow)[:, None]
        return SimpleNamespace(levels=levels[rows])


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ((SLOW, SLOW, 0.3, 0.2, np.nan), [True, False, False]),
        # A tenth is slow for no engine, whatever the others are.
        ((0.1, 0.1, 0.1, 0.1, 0.1), [False, False, False]),
        ((np.nan, np.nan, SLOW, SLOW, SLOW), [False, False, False]),
    ],
)
def test_engines_whose_mixed_steps_are_about_as_slow_are_named_too(
    levels: tuple[float, ...], found: list[bool]
) -> None:
    view = cast("ModelView", Levels(levels))

    assert as_slow_mixed(view, np.arange(2), np.arange(2, 5), ONSET).tolist() == found


@dataclass(frozen=True)
class BesidePeers:
    """A mixed engine without a model, whose mixed steps have always been slow beside its peers'.

    It had generation steps in its first block only, this much slower.
    """

    first: float
    engines = (SimpleNamespace(role=Role.MIXED),)

    def changed(self, name: str, _rows: Rows) -> SimpleNamespace:
        levels = np.full((1, 10), np.nan)
        if name == "mixed_cost":
            levels[:] = SLOW
        elif name == "generation_cost":
            levels[0, 0] = self.first
        apart = np.nan_to_num(levels[:, -1])
        shift = SimpleNamespace(after=levels[:, -1])
        return SimpleNamespace(levels=levels, shift=shift, apart=apart, apart_z=20 * apart)

    def rows_of(self, _role: Role) -> Rows:
        return np.arange(1)

    def recent_over(self, _over: str, _under: str, _rows: Rows) -> np.ndarray:
        return np.array([np.nan])


@pytest.mark.parametrize(("first", "is_mixing"), [(0.03, True), (SLOW, False), (np.nan, False)])
def test_steps_without_prompts_that_an_engine_once_had_show_that_mixing_is_slow(
    first: float, *, is_mixing: bool
) -> None:
    view = cast("ModelView", BesidePeers(first))

    assert (mixing_evidence(view, 0, 0) is not None) == is_mixing
    # What was before an onset says nothing about it.
    assert mixing_evidence(view, 0, ONSET) is None


def test_an_engine_without_readings_shares_the_cause_of_peers_slow_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Evidence("sm_clock", 0.9e9, 1.98e9, "hertz", "a GPU runs at 0.90 GHz")
    mixing, unseen = SlowSteps(Cause.INTERFERENCE, ()), SlowSteps(Cause.SLOW_GPU, ())
    held_back = SlowSteps(Cause.SLOW_GPU, (clock,))

    def causes(*alone: SlowSteps, last_onset: int = ONSET + 1) -> list[Cause]:
        monkeypatch.setattr(slow_steps, "why_slow", lambda view, row, onset: alone[row])
        onsets = np.array([ONSET] * (len(alone) - 1) + [last_onset])
        rows = np.arange(len(alone))
        return [each.cause for each in why_each_is_slow(cast("ModelView", None), rows, onsets)]

    slow = [Cause.INTERFERENCE, Cause.INTERFERENCE, Cause.SLOW_GPU]
    assert causes(mixing, mixing, unseen) == [Cause.INTERFERENCE] * 3
    assert causes(mixing, mixing, held_back) == slow
    assert causes(mixing, mixing, unseen, last_onset=ONSET - 4) == slow
    assert causes(mixing, unseen) == slow[1:]
    assert causes(unseen) == [Cause.SLOW_GPU]
