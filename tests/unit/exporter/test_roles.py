"""Markers to roles: the projects' own manifests, and what must hold for any input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_exporter.roles import Confidence, Markers, Peers, explain

CASES = Path(__file__).parents[2] / "data" / "roles" / "cases.yaml"


def _cases() -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in yaml.safe_load(CASES.read_text())]


def _markers(case: dict[str, Any]) -> Markers:
    return Markers(
        argv=tuple(case.get("argv", ())),
        env=case.get("env", {}),
        labels=case.get("labels", {}),
        page=tuple(case.get("page", ())),
        name=case.get("name", ""),
        peers=Peers(prefill="prefill" in case.get("peers", ())),
    )


@pytest.mark.parametrize("case", _cases())
def test_a_case_from_a_projects_manifest_is_right_and_not_overconfident(
    case: dict[str, Any],
) -> None:
    verdict = explain(_markers(case))

    lowest, highest = Confidence(case["min"]), Confidence(case["max"])
    assert verdict.answer == case["role"], verdict
    assert lowest.rank <= verdict.confidence.rank <= highest.rank, verdict
