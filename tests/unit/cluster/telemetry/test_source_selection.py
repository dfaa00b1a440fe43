"""Which source an engine is attributed by, and that its account shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.telemetry.source_selection import SETTLE_NS, SourceCandidate, SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.series import LARGEST
from disagg_exporter.model import (
    SECOND_NS,
    Assignment,
    Device,
    DeviceReading,
    DeviceSweep,
    EngineAccount,
    EnginePage,
    EngineState,
    Method,
    Phase,
    Reason,
    Role,
    Split,
    Use,
)
from disagg_exporter.roles.command_line.spanning import EnginePart

FOLLOWER = EnginePart("10.0.0.1:29501", 1, follows=True)
LEADER = EnginePart("10.0.0.1:29501", 0, follows=False)
ENGINE = SourceCandidate("e", Role.MIXED, ("g0",), 7, 0, None, {})


class Node:
    """One engine on one device, active half of the time, and its sources."""

    def __init__(self, device: str = "nvidia0", role: Role = Role.MIXED) -> None:
        self.ledger = Ledger()
        self.ledger.add_device(Device("g0", 0, "H100", device), 0)
        self.ledger.assign(Assignment("e", role, ("g0",), EngineState.READY, 0, (7,), "m"))
        self.cpu_seconds = 0.0
        self.sourcing = SourceSelection(self.ledger, cpu_seconds=lambda pid: self.cpu_seconds)
        self.engine = replace(ENGINE, role=role)

    def run(self, start: int, end: int, tokens: int = 10, **told: object) -> None:
        """Let seconds pass: readings at 10 Hz, a selection a second, a page by default."""
        for second in range(start + 1, end + 1):
            for tick in range((second - 1) * 10 + 1, second * 10 + 1):
                reading = DeviceReading("g0", tick * SECOND_NS // 10, busy_ratio=0.5)
                self.ledger.read(DeviceSweep(reading.t_ns, (reading,)))
            page = EnginePage(
                "vllm",
                second * SECOND_NS,
                running=1,
                computed_tokens_total=tokens * second,
                generation_tokens_total=tokens * second,
            )
            self.cpu_seconds += 0.25
            subject = replace(self.engine, **{"page": page, **told})  # type: ignore[arg-type]
            self.sourcing.select([subject], second * SECOND_NS)
            self.ledger.advance(second * SECOND_NS)

    def account(self) -> EngineAccount:
        return self.ledger.engine_accounts(60 * SECOND_NS)[0]

    def seconds(self) -> dict[Phase, float]:
        used = self.account().gpu_seconds
        return {phase: sum(s for (_, p), s in used.items() if p is phase) for phase in Phase}


def test_an_engine_without_steps_is_attributed_by_its_page() -> None:
    node = Node()
    node.run(0, 60)
    account = node.account()
    assert (account.method, account.split) == (Method.PAGE, Split.TOKENS)
    settle = SETTLE_NS / SECOND_NS
    busy = sum(node.seconds().values())
    assert (60 - settle - 10) * 0.5 <= busy <= (60 - settle) * 0.5
    assert node.seconds()[Phase.PREFILL] == pytest.approx(busy / 2)


def test_the_largest_counts_that_a_page_may_have_are_accounted() -> None:
    """An overflow would end the accounting of all engines."""
    page = "vllm:num_requests_running 1\nvllm:generation_tokens_total %r\n"
    node = Node()
    node.run(0, 12, tokens=0)
    for second, tokens in ((13, 0.0), (14, LARGEST), (15, LARGEST)):
        read = parse_page((page % tokens).encode(), second * SECOND_NS)
        node.run(second - 1, second, page=read)
    assert sum(node.account().phase_tokens.values()) == LARGEST


def test_an_engine_whose_accounting_fails_does_not_stop_the_others() -> None:
    def failing(pid: int) -> float:
        if pid == 8:
            raise OverflowError("absurd")
        return 1.0

    ledger = Ledger()
    ledger.add_device(Device("g0", 0, "CPU", "cpu"), 0)
    for name, pid in (("bad", 8), ("good", 7)):
        ledger.assign(Assignment(name, Role.DECODE, ("g0",), EngineState.READY, 0, (pid,), "m"))
    sourcing = SourceSelection(ledger, cpu_seconds=failing)

    for second in range(10, 13):
        page = EnginePage("vllm", second * SECOND_NS, running=1, generation_tokens_total=second)
        both = [
            replace(ENGINE, engine=name, role=Role.DECODE, pid=pid, page=page)
            for name, pid in (("bad", 8), ("good", 7))
        ]
        assert list(sourcing.select(both, second * SECOND_NS)) == ["bad"]
        ledger.advance(second * SECOND_NS)

    good = next(each for each in ledger.engine_accounts(13 * SECOND_NS) if each.engine == "good")
    assert good.method is Method.PAGE_CPU


def test_a_source_that_never_reported_is_not_logged_as_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    with caplog.at_level("INFO"):
        node.run(0, 20)
        node.run(20, 40, page=None, last_received={Method.STEPS: 40 * SECOND_NS})
    assert caplog.messages == ["e: measured by page", "e: measured by steps, no longer by page"]


def test_no_source_is_selected_before_the_plugin_had_time_to_connect() -> None:
    node = Node()
    node.run(0, int(SETTLE_NS / SECOND_NS) - 1)
    assert node.account().method is Method.NONE


def test_on_a_host_without_gpus_cpu_time_is_attributed() -> None:
    node = Node(device="cpu", role=Role.DECODE)
    node.run(0, 60)
    assert node.account().method is Method.PAGE_CPU
    assert node.seconds() == {
        Phase.PREFILL: pytest.approx(node.seconds()[Phase.DECODE]),
        Phase.DECODE: pytest.approx(0.25 * 54 / 2, abs=0.3),
    }


def test_an_engine_without_gpus_and_known_processes_is_not_logged_as_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(device="cpu", role=Role.DECODE)
    with caplog.at_level("INFO"):
        node.run(0, 20, pid=None)
    assert node.account().method is Method.NONE
    assert caplog.messages == ["e: not measured: its processes are not known"]


@pytest.mark.parametrize(("role", "phase"), [(Role.PREFILL, "prefill"), (Role.DECODE, "decode")])
def test_an_engine_without_steps_and_page_is_attributed_by_its_role(role: Role, phase: str) -> None:
    node = Node(role=role)
    node.run(0, 60, page=None)
    assert node.account().method is Method.ROLE
    assert node.seconds()[Phase(phase)] >= 20
    assert sum(node.seconds().values()) == node.seconds()[Phase(phase)]


def test_a_mixed_engine_without_steps_and_page_is_not_attributed() -> None:
    node = Node()
    node.run(0, 60, page=None)
    assert node.account().method is Method.NONE
    assert sum(node.seconds().values()) == 0


def test_an_engine_that_is_not_ready_is_not_attributed() -> None:
    node = Node()
    node.run(0, 60, ready_ns=None)
    assert node.account().method is Method.NONE


def test_an_engine_that_is_gone_is_forgotten() -> None:
    node = Node()
    node.run(0, 40)
    assert node.sourcing.learned_stretches("e") > 0

    node.sourcing.select([], 41 * SECOND_NS)

    assert node.sourcing.shares("e") is None
    node.run(41, 42)
    assert node.sourcing.learned_stretches("e") == 0
    assert node.account().late_records == 0


@pytest.mark.parametrize(("role", "phase"), [(Role.PREFILL, "prefill"), (Role.DECODE, "decode")])
def test_a_follower_is_attributed_by_its_device_activity_and_role(role: Role, phase: str) -> None:
    """There is no settling time: half of each second is attributed from the first selection on."""
    node = Node(role=role)
    node.run(0, 60, page=None, part=FOLLOWER)
    assert (node.account().method, node.account().split) == (Method.FOLLOWER, Split.NONE)
    assert node.seconds()[Phase(phase)] == pytest.approx((60 - 1) * 0.5)
    assert sum(node.seconds().values()) == node.seconds()[Phase(phase)]


def test_tokens_on_the_page_of_a_follower_are_not_counted() -> None:
    """Each rank of SGLang can be configured to report the same steps."""
    node = Node(role=Role.DECODE)
    node.run(0, 30, part=FOLLOWER)
    assert node.account().method is Method.FOLLOWER
    assert sum(node.account().phase_tokens.values()) == 0


@pytest.mark.parametrize("role", [Role.MIXED, Role.UNKNOWN])
def test_a_follower_of_mixed_or_unknown_role_is_not_attributed(role: Role) -> None:
    """Its device activity has no phase: it is unattributed, because no record covers it."""
    node = Node(role=role)
    node.run(0, 60, page=None, part=FOLLOWER)
    assert node.account().method is Method.NONE
    assert sum(node.seconds().values()) == 0
    cells = node.ledger.device_accounts()[0].cells
    active = {cell.reason: s for cell, s in cells.items() if cell.use is Use.UNATTRIBUTED}
    assert active == {Reason.NO_RECORD: pytest.approx(25, abs=3)}


def test_a_follower_on_a_host_without_gpus_is_not_attributed() -> None:
    node = Node(device="cpu", role=Role.DECODE)
    node.run(0, 30, part=FOLLOWER)
    assert node.account().method is Method.NONE


@pytest.mark.parametrize("role", [Role.MIXED, Role.DECODE])
def test_a_follower_splits_its_time_between_phases_as_its_leader_does(role: Role) -> None:
    """The leader reports a quarter as prefill; the follower's devices give its activity."""
    node = Node(role=role)
    node.ledger.add_device(Device("g1", 1, "H100", "nvidia1"), 0)
    node.ledger.assign(Assignment("leader", Role.MIXED, ("g1",), EngineState.READY, 0, (8,), "m"))
    follower = replace(ENGINE, role=role, part=FOLLOWER)
    for second in range(1, 61):
        for tick in range(second * 10 - 9, second * 10 + 1):
            t_ns = tick * SECOND_NS // 10
            readings = tuple(DeviceReading(gpu, t_ns, busy_ratio=0.5) for gpu in ("g0", "g1"))
            node.ledger.read(DeviceSweep(t_ns, readings))
        now_ns = second * SECOND_NS
        page = EnginePage(
            "sglang", now_ns, prefill_seconds_total=0.2 * second, decode_seconds_total=0.6 * second
        )
        leader = SourceCandidate("leader", Role.MIXED, ("g1",), 8, 0, page, {}, LEADER)
        node.sourcing.select([follower, leader], now_ns)
        node.ledger.advance(now_ns)

    accounts = {account.engine: account for account in node.ledger.engine_accounts(61 * SECOND_NS)}
    assert accounts["leader"].method is Method.ENGINE_TIMERS
    assert accounts["e"].method is Method.FOLLOWER
    used = accounts["e"].gpu_seconds
    late = used[role, Phase.PREFILL]
    # Its own half of each second, once its leader had told enough.
    assert sum(used.values()) > 0.5 * (60 - 25)
    assert late == pytest.approx(
        0.25 * sum(used.values()), rel=0.4 if role is Role.DECODE else 0.05
    )
    for device in node.ledger.device_accounts():
        known = sum(device.cells.values())
        assert known == pytest.approx((device.watermark_ns - device.start_ns) / SECOND_NS)
