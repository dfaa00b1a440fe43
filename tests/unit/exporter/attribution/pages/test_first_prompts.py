"""Activity while a page shows an idle engine: its first prompt's once counted, or unattributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from disagg_exporter.attribution.pages.page_windows import MOST_HELD_SECONDS, PageWindows
from disagg_exporter.model import (
    EnginePage,
    Histogram,
    Method,
    Reason,
    Role,
    ServingCounts,
    Use,
    WorkWindow,
)
from support.accounting import NodeAccounting, ns

Stretch = tuple[float, float]


def page(t: float, prompts: int = 0, waited: float = 0.0, running: float | None = 0) -> EnginePage:
    """A page at `t` of an engine that has computed so many prompts of 1000 tokens."""
    first = Histogram((1.0,), (0.0, float(prompts)), waited)
    return EnginePage(
        "vllm",
        ns(t),
        running=running,
        waiting=running,
        computed_tokens_total=1000.0 * prompts,
        generation_tokens_total=float(prompts),
        steps_total=float(prompts),
        serving=ServingCounts(time_to_first_token=first),
    )


def looked_at(pages: Iterable[EnginePage], active: Iterable[Stretch]) -> NodeAccounting:
    """Account for a GPU's engine by its page alone, looked at as its pages come."""
    accounting = NodeAccounting()
    accounting.engine(role=Role.PREFILL)
    accounting.use(Method.PAGE, 0)
    windows = PageWindows(lambda start, end: accounting.ledger.active_seconds("e", start, end))
    stretches, before = list(active), 0.0
    for one in pages:
        t = one.t_ns / 1e9
        for tick in range(round(before * 10) + 1, round(t * 10) + 1):
            on = any(start < tick / 10 <= end for start, end in stretches)
            accounting.tell(tick / 10, busy_ratio=float(on))
        did = windows.ingest(one, Role.PREFILL, Method.PAGE)
        if did is not None:
            accounting.ledger.window("e", did)
        accounting.advance(t)
        before = t
    return accounting


def test_activity_of_a_foreign_process_is_not_work_of_an_idle_engine() -> None:
    """Another process is active for 42 of 60 s, and no request runs."""
    accounting = looked_at((page(t) for t in range(1, 91)), [(10, 31), (35, 56)])

    assert accounting.seconds().get("prefill", 0) == 0
    assert accounting.reasons(Use.UNATTRIBUTED)[Reason.STRANGER] == pytest.approx(42, abs=2.1)
    assert accounting.watermark() >= 80


def test_constant_foreign_activity_holds_the_watermark_only_for_the_maximum_wait() -> None:
    marks = []
    for end in (25, 29, 60, 100):
        accounting = looked_at((page(t) for t in range(1, end)), [(5, 200)])
        marks.append(end - accounting.watermark())
        assert accounting.seconds().get("prefill", 0) == 0

    assert max(marks) <= MOST_HELD_SECONDS + 10
    assert marks[-1] <= 11


@pytest.mark.parametrize("length", [3, 8, 15, 19])
def test_a_prompt_after_idle_is_prefill_although_the_page_showed_no_request(length: int) -> None:
    """VLLM's page says that nothing runs until the first step has ended."""
    start, end = 10.2, 10.2 + length

    def pages() -> Iterable[EnginePage]:
        for t in range(1, 60):
            done = int(t > end)
            yield page(t, done, length * done)

    accounting = looked_at(pages(), [(start, end)])

    assert accounting.seconds()["prefill"] == pytest.approx(length, abs=0.35)
    assert accounting.seconds().get("unattributed", 0) <= 1.1
    assert accounting.unbalanced() == []


def test_a_prompt_beside_foreign_activity_gets_at_most_its_time_to_first_token() -> None:
    """A foreign process from 10 to 40 s, and at 22 s a prompt of two seconds."""

    def pages() -> Iterable[EnginePage]:
        for t in range(1, 70):
            yield page(t, int(t >= 24), 2.0 * (t >= 24))

    accounting = looked_at(pages(), [(10, 40)])

    assert accounting.seconds()["prefill"] == pytest.approx(2.5, abs=0.6)
    assert accounting.seconds()["unattributed"] == pytest.approx(27.5, abs=2.2)


def test_activity_of_a_running_request_without_tokens_is_prefill() -> None:
    """A chunked prompt: the page shows it running after its first chunk."""

    def pages() -> Iterable[EnginePage]:
        for t in range(1, 60):
            yield page(t, int(t > 30), 20.0 * (t > 30), running=float(12 < t <= 30))

    accounting = looked_at(pages(), [(10.0, 30.5)])

    assert accounting.seconds()["prefill"] == pytest.approx(20.5, abs=0.35)


def test_without_a_running_count_device_activity_is_the_engines_work() -> None:
    accounting = looked_at((page(t, running=None) for t in range(1, 40)), [(10, 20)])

    assert accounting.seconds()["prefill"] == pytest.approx(10, abs=0.1)


def windows_of(cpu: Callable[[int], float], pages: Iterable[EnginePage]) -> list[WorkWindow]:
    """The windows of an engine on a host without GPUs, whose processes have used so much CPU."""
    windows = PageWindows(lambda start, end: 0.0)
    told = []
    for number, one in enumerate(pages):
        did = windows.ingest(one, Role.PREFILL, Method.PAGE_CPU, cpu(number))
        if did is not None:
            told.append(did)
    return told


def test_the_cpu_time_of_an_idle_engine_is_not_its_work() -> None:
    """A thread that spins for KV transfers takes most of a core."""
    told = windows_of(lambda second: 0.89 * second, [page(t) for t in range(1, 61)])

    assert {window.busy_ns for window in told} == {0}
    assert told[-1].end_ns == ns(60)
    assert max(window.end_ns - window.start_ns for window in told) == ns(MOST_HELD_SECONDS)


def test_the_cpu_time_of_a_prompt_after_idle_is_its_work() -> None:
    pages = [page(t, int(t > 20), 10.0 * (t > 20)) for t in range(1, 41)]

    told = windows_of(lambda second: min(max(second - 9, 0), 10) * 1.0, pages)

    assert sum(window.busy_ns or 0 for window in told) == ns(10)
    assert sum(window.prefill_tokens for window in told) == 1000
