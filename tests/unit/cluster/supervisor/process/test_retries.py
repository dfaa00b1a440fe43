"""What is done again until it succeeds: said once, however often it fails and of whatever."""

from __future__ import annotations

import logging

import pytest

from disagg_cluster.supervisor.process.retries import SupervisionHealth


@pytest.mark.parametrize("cause", [ValueError("ours"), OSError(24, "Too many open files"), "no"])
def test_a_deed_that_goes_on_failing_is_said_once(
    cause: Exception | str, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = SupervisionHealth(logging.getLogger("test"))

    supervision.failed("decode-0: restart", cause)
    said = len(caplog.records)
    for _ in range(50):
        supervision.failed("decode-0: restart", cause)

    assert 1 <= said <= 2
    assert len(caplog.records) == said
    assert not supervision.status().success
    assert supervision.status().unexpected_failures == 51 * isinstance(cause, ValueError)
