"""Counters of bugs outlive the collectors that had them."""

from disagg_exporter.collectors.health import FailureCounts
from disagg_exporter.model import CollectorStatus


def status(name: str, failures: int) -> CollectorStatus:
    return CollectorStatus(name, True, 0.0, None, failures)


def test_failures_are_summed_by_kind_of_collector() -> None:
    tally = FailureCounts()

    sums = tally.ingest([status("nvml", 0), status("engine:a", 2), status("engine:b", 3)])

    assert sums == {"nvml": 0, "engine": 5}


def test_counts_survive_a_removed_collector_and_are_not_doubled() -> None:
    tally = FailureCounts()
    tally.ingest([status("engine:a", 2)])

    assert tally.ingest([]) == {"engine": 2}
    assert tally.ingest([status("engine:a", 2)]) == {"engine": 2}
    assert tally.ingest([status("engine:a", 3)]) == {"engine": 3}


def test_another_collector_under_the_same_name_adds_to_earlier_counts() -> None:
    tally = FailureCounts()
    tally.ingest([status("engine:a", 5)])

    assert tally.ingest([status("engine:a", 0)]) == {"engine": 5}
    assert tally.ingest([status("engine:a", 1)]) == {"engine": 6}


def test_counts_under_ever_new_names_are_not_lost_and_memory_is_bounded() -> None:
    tally = FailureCounts()
    for number in range(3000):
        sums = tally.ingest([status(f"engine:{number}", 1)])

    assert sums == {"engine": 3000}
    assert len(tally._remembered) == 1024
    assert tally.ingest([status("engine:2999", 1)]) == {"engine": 3000}
