"""Warnings about pods whose steps do not arrive properly, and how often they appear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.discovery.pod_steps.admission import SILENT_SECONDS, SocketStatus, Warnings
from disagg_exporter.inside_engine.disagg_steps import wire
from support.accounting import ns

WELL = SocketStatus("uid", "llm/decode-0", running=True, accepted=1, refused=0, flags=0)
SILENT = replace(WELL, accepted=0)
LATER = ns(SILENT_SECONDS + 1)


def said(*rounds: tuple[SocketStatus, int]) -> list[str]:
    warnings = Warnings()
    return [text for socket, now_ns in rounds for text in warnings.due([socket], now_ns)]


def test_a_pod_with_steps_gets_no_warning() -> None:
    assert said((WELL, 0), (WELL, LATER)) == []


@pytest.mark.parametrize(
    ("socket", "words"),
    [
        (SILENT, "PYTHONPATH and DISAGG_STEPS_SOCKET"),
        (replace(WELL, flags=wire.NO_DETAILS), "--enable-logging-iteration-details"),
        (replace(WELL, refused=7), "refused"),
    ],
)
def test_a_problem_is_logged_once_with_a_remedy(socket: SocketStatus, words: str) -> None:
    (text,) = said((socket, 0), (socket, LATER), (socket, 2 * LATER))

    assert text.startswith("llm/decode-0 ")
    assert words in text


def test_a_pod_that_is_still_starting_may_be_silent() -> None:
    starting = replace(SILENT, running=False)

    assert said((starting, 0), (starting, LATER), (SILENT, LATER + 1)) == []


def test_a_returning_pod_is_warned_about_again() -> None:
    warnings = Warnings()
    wrong = replace(WELL, refused=1)
    first = list(warnings.due([wrong], 0))
    list(warnings.due([], 1))

    assert list(warnings.due([wrong], 2)) == first != []
