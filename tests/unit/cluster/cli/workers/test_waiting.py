"""How a request for a change ends, and what a person is told who waits for it no longer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from disagg_cluster.cli.control import carry_out
from disagg_cluster.control.client import new_request
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    ReplyOutcome,
    RestartWorker,
)


class Interrupted:
    """A daemon whose client is interrupted after its first answers."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers

    def ask(
        self, request: ControlRequest, _patience_seconds: float | None = None, /
    ) -> Iterator[ControlReply]:
        for text in self._answers:
            yield ControlReply(request.id, ReplyOutcome.PROGRESS, text)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("answers", "told"), [(("d0: draining",), "it goes on"), ((), "it may have begun")]
)
def test_ctrl_c_while_waiting_exits_and_explains_what_happens_to_the_change(
    answers: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.exceptions.Exit) as ended:
        carry_out(Interrupted(*answers), new_request(RestartWorker("d0")), as_json=False)

    assert ended.value.exit_code == 130
    assert told in capsys.readouterr().err.splitlines()[-1]


class Answering:
    """A daemon with these answers."""

    def __init__(self, *outcomes: ReplyOutcome) -> None:
        self._outcomes = outcomes

    def ask(
        self, request: ControlRequest, _patience_seconds: float | None = None, /
    ) -> Iterator[ControlReply]:
        for outcome in self._outcomes:
            yield ControlReply(request.id, outcome, "d0: so")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (ReplyOutcome.FAILED, 1),
        (ReplyOutcome.INVALID, 2),
        (ReplyOutcome.REFUSED, 3),
        (ReplyOutcome.TIMEOUT, 5),
    ],
)
def test_the_exit_code_is_that_of_the_outcome(outcome: ReplyOutcome, code: int) -> None:
    with pytest.raises(click.exceptions.Exit) as ended:
        carry_out(Answering(outcome), new_request(RestartWorker("d0")), as_json=False)

    assert ended.value.exit_code == code


def test_json_says_of_each_answer_whether_it_is_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon = Answering(ReplyOutcome.PROGRESS, ReplyOutcome.DONE)
    carry_out(daemon, new_request(RestartWorker("d0")), as_json=True)

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["outcome"], each["final"]) for each in told] == [
        ("progress", False),
        ("done", True),
    ]
