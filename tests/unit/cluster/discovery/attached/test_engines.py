"""Found engines as they come and go, in the ledger and on the page."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.discovery.attached.engines import (
    OTHER_MODEL,
    AttachedEngines,
)
from disagg_cluster.discovery.observations.types import (
    MAX_ENGINES,
    Claimed,
    Endpoint,
    Finder,
    FoundEngine,
    Leader,
)
from disagg_cluster.telemetry.engine_registry import LINGER_SECONDS, SILENT_SECONDS, EngineRegistry
from disagg_cluster.telemetry.pages.label_values import KEPT_VALUES, PER_ENGINE
from disagg_cluster.telemetry.pages.page_state import PageState, page_health
from disagg_exporter.accounting import Ledger
from disagg_exporter.metrics.page_cache import PageCache
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import (
    SECOND_NS,
    CollectorStatus,
    Device,
    EnginePage,
    EngineState,
    EngineStatus,
    Method,
    Role,
    Snapshot,
    StepLimits,
)
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.types import Confidence, Markers, Verdict

GPU = Device("GPU-a", 0, "H100", "nvidia0")
PREFILL = Verdict(Role.PREFILL, "vllm", Confidence.HIGH)
DECODE = Verdict(Role.DECODE, "traffic", Confidence.LOW)
NONE = Confidence.NONE
ROUTER = Verdict(Role.NONE, "program", Confidence.HIGH, is_engine=False)


class Pages:
    """A `PageScraper` with pages set by a test."""

    def __init__(self) -> None:
        self.known: dict[str, EnginePage] = {}
        self.answered: dict[str, int] = {}
        self.worker_id = "ff"

    def answer(self, name: str, t_ns: int, **values: Any) -> None:
        self.known[name] = EnginePage("vllm", t_ns, **{"model_name": "m", **values})
        self.answered[name] = t_ns

    def state(self, name: str) -> PageState:
        health = page_health(name, logging.getLogger(__name__))
        health.report({} if name in self.known else {"": "no page"})
        line = f'dynamo_component_x{{worker_id="{self.worker_id}"}} 1'
        return PageState(
            health,
            page=self.known.get(name),
            answered_ns=self.answered.get(name),
            lines=(line,) if name in self.known else (),
        )

    def page(self, name: str) -> EnginePage | None:
        return self.known.get(name)


class Silent:
    """Engines without step reports; remembers which were forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def last_received(self, _name: str) -> Mapping[Method, int]:
        return {}

    def drain(self, _name: str) -> None:
        pass

    def collectors(self) -> tuple[CollectorStatus, ...]:
        return ()

    def close(self) -> None:
        pass

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


class Node:
    """Attached engines over a ledger, with a clock that a test advances."""

    def __init__(self, gpus: tuple[Device, ...] = (), **more: Any) -> None:
        self.now_ns = 1000 * SECOND_NS
        self.ledger, self.pages, self.told = Ledger(), Pages(), Silent()
        for gpu in gpus:
            self.ledger.add_device(gpu, self.now_ns)
        self.attach(gpus, **more)

    def attach(self, gpus: Sequence[Device], **more: Any) -> None:
        """Attach to a registry without any engine."""
        clock: dict[str, Any] = {"clock_ns": lambda: self.now_ns}
        self.registry = EngineRegistry(self.ledger, 1.0, **clock)
        self.registry.pages = self.pages  # type: ignore[assignment] # as a PageScraper
        self.registry.sources.add(self.told)
        self.attached = AttachedEngines(self.registry, self.ledger, gpus, **clock, **more)

    def see(self, *engines: FoundEngine, seconds: float = 2.0, **verdicts: Verdict) -> None:
        """Advance the clock, scan, and judge: the roles a test gives, others as prefill."""
        self.now_ns += round(seconds * SECOND_NS)
        self.ledger.advance(self.now_ns)
        self.attached.update(engines)
        judged = {engine.name: verdicts.get(engine.name, PREFILL) for engine in engines}
        self.attached.settle(judged)

    def statuses(self) -> dict[str, EngineStatus]:
        return {status.engine: status for status in self.registry.statuses()}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            taken_ns=self.now_ns,
            wall_offset_seconds=0.0,
            fresh_until_ns=self.now_ns + 10 * SECOND_NS,
            devices=self.registry.devices(),
            accounts=self.ledger.device_accounts(),
            removed_accounts=self.ledger.removed_accounts(),
            engine_accounts=self.ledger.engine_accounts(self.now_ns),
            engines=self.registry.statuses(),
            left_out_engines=self.registry.left_out,
        )

    def page(self) -> str:
        rendered = PageCache(self.snapshot, rows_of, lambda: self.now_ns).page("", gzipped=False)
        return rendered.body.decode()

    def node_seconds(self) -> float:
        lines = [line for line in self.page().splitlines() if "node_phase_seconds_total{" in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def engine(name: str = "e", pid: int = 7, **changes: Any) -> FoundEngine:
    found = FoundEngine(
        keys=(name,),
        proposed_name=name,
        kind="vllm",
        seen_by=(Finder.PROCESSES,),
        name=name,
        endpoints=(Endpoint("127.0.0.1", 8000),),
        leader=Leader(pid, 1),
    )
    return replace(found, **changes)


def test_an_engine_is_starting_until_it_answers_and_gone_when_not_found() -> None:
    node = Node()
    node.see(engine())
    assert node.statuses()["e"].state is EngineState.STARTING

    node.pages.answer("e", node.now_ns)
    node.see(engine())
    status = node.statuses()["e"]
    assert (status.state, status.up, status.model_name) == (EngineState.READY, True, "m")
    assert (status.role, status.source, status.confidence) == (Role.PREFILL, "vllm", "high")

    node.see()
    assert node.statuses() == {}
    assert node.told.forgotten == ["e"]


def test_on_a_host_without_gpus_each_engine_is_one_device() -> None:
    node = Node(first_index=3)
    node.see(engine("a"), engine("b"))

    assert [(d.gpu, d.index) for d in node.registry.devices()] == [("cpu-a", 3), ("cpu-b", 4)]
    assert node.statuses()["b"].devices == ("cpu-b",)


def test_on_a_host_with_gpus_an_engine_has_the_gpus_it_is_found_on() -> None:
    gpu = GPU
    node = Node((gpu,))
    node.see(engine("a", gpus=("GPU-a",)), engine("b", gpus=None))

    assert node.registry.devices() == ()
    assert node.statuses()["a"].devices == ("GPU-a",)
    assert node.statuses()["b"].devices == ()


def test_a_forgotten_engine_leaves_only_the_nodes_sums() -> None:
    node = Node()
    node.see(engine("mortal"))
    node.pages.answer("mortal", node.now_ns)
    for _ in range(20):
        node.see(engine("mortal"))
    node.see()
    before = node.node_seconds()
    assert "mortal" in node.page()

    node.see(seconds=LINGER_SECONDS)

    assert "mortal" not in node.page()
    assert node.registry.devices() == ()
    assert node.node_seconds() >= before > 0


def test_a_restarted_engine_continues_its_account() -> None:
    node = Node()
    node.see(engine(pid=7))
    node.pages.answer("e", node.now_ns)
    node.see(engine(pid=7))
    start_ns = node.snapshot().accounts[0].start_ns
    node.pages.known.clear()
    node.pages.answered.clear()

    node.see()
    node.see(engine(pid=8), seconds=LINGER_SECONDS / 2)

    assert node.statuses()["e"].state is EngineState.STARTING
    assert node.snapshot().accounts[0].start_ns == start_ns


def test_another_process_under_the_same_name_starts_at_zero() -> None:
    node = Node()
    node.see(engine(pid=7))
    node.pages.answer("e", node.now_ns)
    node.see(engine(pid=7))
    node.pages.answered.clear()

    node.see(engine(pid=8))

    assert node.statuses()["e"].state is EngineState.STARTING


def test_a_role_that_changes_is_followed() -> None:
    node = Node()
    node.see(engine())
    node.see(engine(), e=DECODE)

    status = node.statuses()["e"]
    assert (status.role, status.source, status.confidence) == (Role.DECODE, "traffic", "low")
    assert node.ledger.engine_accounts(node.now_ns)[0].role is Role.DECODE


def test_a_non_engine_is_not_shown() -> None:
    node = Node()
    node.see(engine(), e=ROUTER)

    assert node.statuses() == {}


def test_a_pod_that_is_being_deleted_drains() -> None:
    node = Node()
    node.see(engine())
    node.pages.answer("e", node.now_ns)
    node.see(engine(draining=True))

    assert node.statuses()["e"].state is EngineState.DRAINING


def test_an_engine_known_only_by_its_page_is_gone_when_the_page_is() -> None:
    listed = engine(leader=None, seen_by=(Finder.LISTED,))
    node = Node()
    node.pages.answer("e", node.now_ns)
    node.see(listed)
    assert node.statuses()["e"].state is EngineState.READY

    node.see(listed, seconds=SILENT_SECONDS + 1)
    assert node.statuses()["e"].state is EngineState.GONE

    node.pages.answer("e", node.now_ns)
    node.see(listed)
    assert node.statuses()["e"].state is EngineState.READY


def test_the_next_address_is_tried_until_one_has_a_page() -> None:
    two = engine(endpoints=(Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)))
    node = Node()
    node.see(two)
    node.see(two)
    assert node.registry.urls["e"] == "http://127.0.0.1:1"
    node.see(two)
    assert node.registry.urls["e"] == "http://127.0.0.1:2"

    node.pages.answer("e", node.now_ns)
    node.see(two)
    node.pages.known.clear()
    node.see(two)
    node.see(replace(two, endpoints=two.endpoints[::-1]))

    assert node.registry.urls["e"] == "http://127.0.0.1:2"


def test_more_engines_than_any_node_has_are_left_out() -> None:
    node = Node()
    node.see(*(engine(f"e{n}", n) for n in range(MAX_ENGINES + 3)))

    assert len(node.statuses()) == MAX_ENGINES
    assert node.attached.lost.startswith("3 engines more than 64")
    assert "disagg_left_out_engines 3.0" in node.page()


def test_transient_engines_displace_no_lasting_ones() -> None:
    node = Node()
    for number in range(3 * MAX_ENGINES):
        node.see(engine("stays"), engine(f"e{number}", number), seconds=0.1)

    assert node.attached.lost == ""
    assert len(node.statuses()) == 2
    assert len(node.registry.devices()) <= 2 * MAX_ENGINES


def test_a_change_of_role_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    decodes, unknown = replace(PREFILL, role=Role.DECODE), Verdict(Role.UNKNOWN, "dynamic", NONE)
    with caplog.at_level("INFO"):
        for verdict in (PREFILL, PREFILL, unknown, PREFILL, decodes, decodes):
            node.see(engine(), e=verdict)

    assert node.statuses()["e"].role_changes == 1
    assert 'disagg_engine_role_changes_total{engine="e"} 1.0' in node.page()
    assert caplog.messages[-1] == "e: role decode, no longer prefill (vllm, high: no marker)"


def model_names(node: Node, family: str = "disagg_node_phase_seconds_total") -> set[str]:
    return set(re.findall(rf'^{family}\{{.*model_name="([^"]+)"', node.page(), re.MULTILINE))


def test_an_engine_that_changes_its_models_name_at_will_does_not_fill_the_page() -> None:
    node = Node()
    for number in range(PER_ENGINE + 5):
        node.pages.answer("e", node.now_ns, model_name=f"model-{number}\n" + "x" * 1000)
        node.see(engine())
    name = node.statuses()["e"].model_name

    assert name == OTHER_MODEL
    assert max(len(line) for line in node.page().splitlines() if line[0] != "#") < 500


def test_forty_hours_of_invented_names_leave_the_page_bounded() -> None:
    """And no second is lost: what has lost its name stays in the sums of its device."""
    node = Node((GPU,))
    liar = engine("liar", 1)
    for number in range(40 * 20):
        node.pages.answer("liar", node.now_ns, model_name=f"model-{number}")
        node.see(replace(liar, gpus=(GPU.gpu,)), seconds=180)
        node.ledger.advance(node.now_ns)
        account = node.ledger.device_accounts()[0]
        watched_seconds = (account.watermark_ns - account.start_ns) / 1e9
        assert sum(account.cells.values()) == pytest.approx(watched_seconds)

    node.pages.answer("honest", node.now_ns, model_name="llama")
    node.see(replace(liar, gpus=(GPU.gpu,)), engine("honest", 2))

    assert node.statuses()["honest"].model_name == "llama"
    assert len(model_names(node)) <= KEPT_VALUES + PER_ENGINE
    tokens = {account.model_name for account in node.ledger.token_accounts()}
    assert len(tokens) <= KEPT_VALUES + PER_ENGINE


def test_a_dynamo_worker_that_changes_its_id_at_will_does_not_fill_the_page() -> None:
    node = Node()
    found = replace(engine(), kind="dynamo")
    ids = set()
    for number in range(50):
        node.pages.worker_id = f"{number:x}"
        node.pages.answer("e", node.now_ns)
        node.see(found)
        worker = node.statuses()["e"].dynamo
        ids |= {worker.worker} if worker else set()

    assert len(ids) == PER_ENGINE


@pytest.mark.parametrize(
    ("claimed", "registering", "expected"),
    [
        (Claimed("ab"), True, ("ab", True)),
        (None, True, ("ff", False)),
        (None, False, ("ff", None)),
    ],
)
def test_an_unregistered_dynamo_worker_that_answers_is_reported(
    claimed: Claimed | None, registering: bool, expected: tuple[str, bool | None]
) -> None:
    node = Node(registering=registering)
    worker = engine(kind="dynamo", claimed=claimed)
    node.pages.answer("e", node.now_ns)
    node.see(worker)

    told = node.statuses()["e"].dynamo
    assert told is not None
    assert (told.worker, told.registered) == expected


def test_no_counter_of_the_node_decreases_when_engines_are_added_or_removed() -> None:
    node, last = Node(), 0.0
    for number in range(40):
        here = [engine(f"e{n}", n) for n in range(3) if (number >> n) & 1]
        node.see(*here, seconds=25.0)
        for one in here:
            node.pages.answer(one.name, node.now_ns)
        now = node.node_seconds()
        assert now >= last - 1e-6
        last = now


def test_any_number_of_removed_engines_leaves_only_one_sum() -> None:
    node = Node()
    for number in range(300):
        one = engine(f"e{number}", number)
        node.see(one, seconds=40.0)
        node.pages.answer(one.name, node.now_ns)
        node.see(one, seconds=40.0)
    node.see(seconds=1.0)
    node.see(seconds=LINGER_SECONDS)

    snapshot = node.snapshot()
    assert (snapshot.accounts, snapshot.engine_accounts, snapshot.engines) == ((), (), ())
    [kept] = snapshot.removed_accounts
    assert len(kept.cells) < 10
    assert sum(kept.cells.values()) == pytest.approx(node.node_seconds(), rel=0.5)


@pytest.mark.parametrize("head", ["10.0.0.1:29501", ""])
def test_a_follower_is_ready_without_a_page(head: str) -> None:
    node = Node((GPU,), registering=True)
    follower = engine(
        endpoints=(), gpus=("GPU-a",), kind="dynamo", part=EnginePart(head, 1, True, model_name="m")
    )
    node.see(follower)

    status = node.statuses()["e"]
    assert (status.state, status.up, status.follows) == (EngineState.READY, True, head)
    assert status.model_name == "m"
    assert status.dynamo is None
    assert dict(node.registry.urls) == {}

    node.see(follower, seconds=SILENT_SECONDS + 1)
    assert node.statuses()["e"].state is EngineState.READY
    node.see(replace(follower, draining=True))
    assert node.statuses()["e"].state is EngineState.DRAINING
    node.see()
    assert node.statuses() == {}


def test_a_previous_daemons_engine_keeps_its_role_until_it_answers() -> None:
    """Its work without a daemon has that role, and its counters continue."""
    before = Node((GPU,))
    before.pages.answer("e", before.now_ns)
    for _ in range(10):
        before.see(engine(gpus=("GPU-a",)), e=DECODE)
        before.pages.answer("e", before.now_ns)
    [account] = before.ledger.device_accounts()
    watermark_ns = account.watermark_ns

    after = Node()
    after.attach([GPU])
    after.now_ns = before.now_ns + 100 * SECOND_NS
    after.ledger.resume(before.ledger.checkpoint(before.now_ns), [GPU], {7}, after.now_ns)
    assert after.ledger.awaited_engines.missing == {"e"}
    after.see(engine(gpus=("GPU-a",)), seconds=1, e=PREFILL)
    assert after.ledger.awaited_engines.missing == frozenset()
    [account] = after.ledger.device_accounts()
    assert (account.role, account.start_ns) == (Role.DECODE, 1000 * SECOND_NS)

    after.pages.answer("e", after.now_ns)
    after.see(engine(gpus=("GPU-a",)), seconds=20, e=PREFILL)
    [account] = after.ledger.device_accounts()
    assert account.role is Role.PREFILL
    absent = {
        cell.role: seconds for cell, seconds in account.cells.items() if cell.reason == "no_daemon"
    }
    assert absent == {Role.DECODE: 100.0}
    assert account.watermark_ns > watermark_ns


def test_another_process_under_a_previous_name_is_another_engine() -> None:
    before = Node((GPU,))
    before.pages.answer("e", before.now_ns)
    before.see(engine(gpus=("GPU-a",)))

    after = Node()
    after.attach([GPU])
    after.now_ns = before.now_ns + 100 * SECOND_NS
    after.ledger.resume(before.ledger.checkpoint(before.now_ns), [GPU], {7}, after.now_ns)
    after.see(engine(pid=8, gpus=("GPU-a",)), seconds=2)
    after.see(engine(pid=8, gpus=("GPU-a",)), seconds=20)

    [account] = after.ledger.device_accounts()
    assert account.role is Role.NONE, "it has not answered yet"
    reasons = {cell.reason for cell in account.cells}
    assert "starting" in reasons


def test_start_time_and_limits_come_from_the_process() -> None:
    node, markers = Node(), Markers(argv=("vllm", "serve", "m", "--max-num-seqs", "64"))
    own = os.getpid()
    node.see(engine(leader=Leader(own, 1), markers=markers))
    running = node.statuses()["e"]
    node.see(engine(leader=None, pod_uid="p", markers=Markers()))
    elsewhere = node.statuses()["e"]

    assert running.start_timestamp_seconds is not None
    assert 0 < running.start_timestamp_seconds < time.time()
    assert running.limits == StepLimits(None, 64)
    assert (elsewhere.start_timestamp_seconds, elsewhere.limits) == (None, StepLimits())
