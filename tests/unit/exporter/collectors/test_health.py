"""The one guard of all collectors: an exception in a round is reported, and ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.collectors import Backoff, CollectorHealth
from disagg_exporter.errors import DisaggError

LOG = logging.getLogger("test")


def health(**changes: object) -> CollectorHealth:
    return CollectorHealth("c", LOG, wall=lambda: 9.0, **changes)  # type: ignore[arg-type]


def fail(collector: CollectorHealth, error: Exception) -> None:
    with collector.round():
        raise error


def test_a_round_has_a_duration_and_a_success_timestamp() -> None:
    times = iter((1_000_000_000, 1_500_000_000))
    collector = health(clock_ns=lambda: next(times))

    with collector.round():
        pass

    status = collector.status()
    assert (status.collector, status.success) == ("c", True)
    assert status.duration_seconds == 0.5
    assert status.last_success_timestamp_seconds == 9.0


@pytest.mark.parametrize(
    ("error", "said", "unexpected"),
    [
        (DisaggError("nobody answers"), "nobody answers", 0),
        (OSError(28, "No space left on device"), "No space left on device", 0),
        (TimeoutError(), "it fails with TimeoutError", 0),
        (ExceptionGroup("several", [DisaggError("nobody answers")]), "nobody answers", 0),
        (ValueError("s3cret"), "it fails with ValueError (see --verbose); please report it", 1),
        (RecursionError(), "it fails with RecursionError (see --verbose); please report it", 1),
    ],
)
def test_an_exception_of_a_round_is_not_propagated_and_is_shown(
    error: Exception, said: str, unexpected: int, caplog: pytest.LogCaptureFixture
) -> None:
    collector = health()

    with caplog.at_level(logging.INFO):
        fail(collector, error)
        fail(collector, error)

    status = collector.status()
    assert (status.success, collector.why, collector.failures) == (False, said, 2)
    assert status.unexpected_failures == 2 * unexpected
    assert len(caplog.records) == 1
    assert said in caplog.text
    assert "s3cret" not in caplog.text


def test_a_bug_is_logged_with_its_location(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail(health(), ValueError("s3cret"))

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "test_health.py" in record.getMessage()
    assert "in fail" in record.getMessage()


def test_a_failure_is_logged_when_it_changes_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = health(subject="s", failing="page: ", recovered="page: is back")

    with caplog.at_level(logging.INFO):
        for why in ("a", "a", "b", "", "", "a"):
            collector.fail(why) if why else collector.succeed()

    assert caplog.messages == ["s: page: a", "s: page: b", "s: page: is back", "s: page: a"]


def test_failures_of_one_cause_are_logged_once_for_any_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = health()

    for number in range(3):
        fail(collector, DisaggError(f"it answers {number}", cause="it answers wrongly"))

    assert caplog.messages == ["c: it answers 0"]
    assert collector.why == "it answers 2"


def test_each_of_several_problems_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    collector = health()

    for _ in range(2):
        with collector.round() as problems:
            problems |= {"x": "x is full", "y": "y is gone"}
    with collector.round() as problems:
        problems["y"] = "y is gone"

    assert caplog.messages == ["c: x is full", "c: y is gone"]
    assert (collector.ok, collector.problems) == (False, ("y is gone",))


def test_two_alternating_bugs_are_each_logged_once_until_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = health()

    for _ in range(20):
        for error in (KeyError("a"), IndexError("b")):
            collector.record_defect(error)
            collector.report({"decode-0": "not restarted"})

    assert [record.levelname for record in caplog.records].count("ERROR") == 2
    assert collector.status().unexpected_failures == 40

    collector.succeed()
    collector.record_defect(KeyError("a"))
    assert [record.levelname for record in caplog.records].count("ERROR") == 3


def test_a_tolerated_single_failure_is_shown_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = health(silent_failures=1)

    collector.fail("a")
    shown = collector.status().success
    collector.succeed()
    collector.fail("a")
    assert (shown, caplog.messages) == (False, [])

    collector.fail("a")
    assert caplog.messages == ["c: a"]


def test_an_untried_collector_is_marked_and_its_first_success_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = health(untried="not asked yet", recovered="answers")
    assert (collector.ok, collector.why, collector.tried) == (False, "not asked yet", False)

    with caplog.at_level(logging.INFO):
        collector.succeed()

    assert caplog.messages == ["c: answers"]


def test_a_failure_between_two_rounds_fails_the_collector() -> None:
    collector = health()
    with collector.guard():
        raise ValueError
    assert not collector.ok

    with collector.guard():
        pass
    assert not collector.ok


def test_resting_forgets_earlier_rounds() -> None:
    collector = health()
    collector.succeed()
    collector.fail("a")

    collector.rest()

    assert (collector.ok, collector.tried, collector.failures) == (True, False, 0)
    assert collector.status().last_success_timestamp_seconds is None


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_that_end_the_process_are_propagated(end: type[BaseException]) -> None:
    def stop() -> None:
        with health().round():
            raise end

    with pytest.raises(end):
        stop()


rounds: st.SearchStrategy[Callable[[], Exception | None]] = st.sampled_from(
    [lambda: None, lambda: ValueError(), lambda: DisaggError("x"), lambda: OSError(5, "io")]
)


@given(st.lists(rounds, min_size=1))
def test_success_is_that_of_the_last_round_and_defects_are_counted(
    made: list[Callable[[], Exception | None]],
) -> None:
    collector, errors = health(), [make() for make in made]

    for error in errors:
        with collector.round():
            if error is not None:
                raise error

    status = collector.status()
    assert status.success is (errors[-1] is None)
    assert status.unexpected_failures == sum(isinstance(e, ValueError) for e in errors)
    assert (status.last_success_timestamp_seconds is None) is (None not in errors)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(0, 10**6))
def test_backoff_waits_grow_from_the_first_to_the_longest(
    first: float, longest: float, failures: int
) -> None:
    backoff = Backoff(first, longest)

    assert backoff.seconds(0) == backoff.seconds(1) == first
    assert first <= backoff.seconds(failures) <= max(first, longest)
    assert backoff.seconds(failures) <= backoff.seconds(failures + 1)
