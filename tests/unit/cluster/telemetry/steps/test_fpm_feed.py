import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.telemetry.steps.fpm_addresses import listening_sockets, of_dynamo, of_sglang
from disagg_cluster.telemetry.steps.fpm_feed import FpmFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import Assignment, Device, EngineState, Method, Role
from disagg_exporter.steps.fpm.message import MAX_BODY_BYTES
from disagg_exporter.steps.fpm.subscriber import FpmSubscriber
from support.fpm_publisher import IDLE, STEP, Publisher

ME = os.getpid()


def books() -> Ledger:
    ledger = Ledger()
    ledger.add_device(Device("g0", 0, "H100", "nvidia0"), 0)
    ledger.assign(Assignment("e", Role.DECODE, ("g0",), EngineState.READY, 0, (ME,)))
    ledger.use("e", Method.FPM, 0)
    return ledger


def feed(
    ledger: Ledger,
    address: str,
    members: Callable[[], Iterable[int]] = lambda: [ME],
    **options: Any,
) -> FpmFeed:
    capacity_model = CapacityModel(itl_seconds=0.05)
    return FpmFeed("e", [address], ledger, capacity_model, ME, members, **options)


def told(ledger: Ledger) -> tuple[int, int]:
    """The decode steps received after the first message, and their milliseconds."""
    totals = ledger.engine_accounts(0)[0].reported
    return totals.steps[1], totals.elapsed_ns[1] // 1_000_000


def heard(feed: FpmFeed, publish: Callable[[], object], until: Callable[[], bool]) -> None:
    """Run a feed in a loop: publish once it listens, and go on until something is true."""

    async def story() -> None:
        feed.open(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(publish)
                while not until():
                    await asyncio.sleep(0.01)
        finally:
            feed.close()

    asyncio.run(story())


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_steps_of_the_engines_own_publisher_are_received(transport: str, tmp_path: Path) -> None:
    ledger = books()
    address = f"ipc://{tmp_path}/f.0" if transport == "ipc" else "tcp://127.0.0.1"
    with Publisher(address) as publisher:
        hearing = feed(ledger, publisher.address)

        def publish() -> None:
            publisher.wait_for_subscriber()
            for _ in range(11):
                publisher.send(STEP)
            publisher.send(IDLE)

        heard(hearing, publish, lambda: ledger.engine_accounts(0)[0].running == 0)

    assert told(ledger) == (10, 100)
    assert hearing.collectors()[0].success is False  # closed again
    assert hearing.lost == 0


def test_duplicate_frames_count_once_and_missing_ones_as_lost() -> None:
    ledger = books()
    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address)

        def publish() -> None:
            publisher.wait_for_subscriber()
            for number in (5, 6, 6, 5, 7, 10):
                publisher.send(STEP, number)
            publisher.send(IDLE)

        heard(hearing, publish, lambda: ledger.engine_accounts(0)[0].running == 0)

    assert told(ledger) == (3, 30)
    assert hearing.lost == 2


def test_invalid_messages_are_counted_and_skipped() -> None:
    got: list[int] = []

    async def story(publisher: Publisher) -> int:
        subscriber = FpmSubscriber(publisher.address, lambda number, *_: got.append(number))
        subscriber.open(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(publisher.wait_for_subscriber)
                publisher.send_frames(b"topic", b"12345678", b"")
                publisher.send_frames(b"", b"1234567", b"\x80")
                publisher.send_frames(b"", b"12345678")
                publisher.send({"version": 9}, 1)
                publisher.send(STEP | {"wall_time": -1}, 2)
                publisher.send(STEP, 3)
                while not got:
                    await asyncio.sleep(0.01)
        finally:
            subscriber.close()
        return subscriber.bad_messages

    with Publisher() as publisher:
        assert asyncio.run(story(publisher)) == 5
    assert got == [3]


def test_the_feed_reconnects_after_an_oversized_message() -> None:
    """ZMQ drops the connection for good; the feed connects again."""
    ledger = books()
    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address, silent_seconds=0.1)

        def publish() -> None:
            publisher.wait_for_subscriber()
            publisher.send({"version": 1, "x": b"x" * (2 * MAX_BODY_BYTES)}, 1)
            publisher.wait_for_subscriber()
            publisher.send(STEP, 2)
            publisher.send(STEP, 3)

        heard(hearing, publish, lambda: told(ledger) == (1, 10))

    assert hearing.lost == 0


def test_a_foreign_publisher_is_ignored() -> None:
    """It listens on the engine's address, but no process of the engine holds its socket."""
    ledger, asked = books(), []

    def members() -> list[int]:
        asked.append(1)
        return []

    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address, members)
        heard(hearing, lambda: publisher.send(STEP), lambda: bool(asked))

    assert hearing.received_ns is None
    assert told(ledger) == (0, 0)


def test_steps_are_received_but_dropped_while_another_source_is_attributed() -> None:
    """The engine also reports its steps by its plugin: counting both would double them."""
    ledger = books()
    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address, attributed=lambda: False)

        def publish() -> None:
            publisher.wait_for_subscriber()
            publisher.send(STEP)
            publisher.send(STEP)

        heard(hearing, publish, lambda: hearing.received_ns is not None)

    assert told(ledger) == (0, 0)


# Addresses


def test_each_rank_of_a_dynamo_worker_has_its_own_port() -> None:
    environment = {"DYN_FORWARDPASS_METRIC_PORT": "20400"}

    assert of_dynamo(environment, 2) == ("tcp://127.0.0.1:20400", "tcp://127.0.0.1:20401")
    assert of_dynamo({}, 2) == ()


@pytest.mark.parametrize("port", ["", "x", "-1", "99999", "0", "\u0661", "1" * 50])
def test_an_invalid_port_gives_at_most_the_default_address(port: str) -> None:
    addresses = of_dynamo({"DYN_FORWARDPASS_METRIC_PORT": port})

    assert set(addresses) <= {"tcp://127.0.0.1:20380"}


def test_each_rank_of_an_sglang_server_has_its_own_socket_file() -> None:
    info: dict[str, object] = {
        "enable_forward_pass_metrics": True,
        "forward_pass_metrics_ipc_name": "ipc:///tmp/a",
    }

    assert of_sglang(info, 2) == ("ipc:///tmp/a.0", "ipc:///tmp/a.1")
    assert of_sglang(info | {"enable_forward_pass_metrics": False}) == ()
    assert of_sglang(info | {"forward_pass_metrics_ipc_name": None}) == ()
    assert of_sglang(info | {"forward_pass_metrics_ipc_name": "tcp://10.0.0.1:1"}) == ()
    assert of_sglang(info | {"forward_pass_metrics_ipc_name": "ipc:///tmp/a\n"}) == ()


def test_a_socket_file_is_found_only_once_it_is_listening(tmp_path: Path) -> None:
    path = tmp_path / "with space.0"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert listening_sockets(f"ipc://{path}") == frozenset()
        listening.listen()

        assert listening_sockets(f"ipc://{path}") == {os.fstat(listening.fileno()).st_ino}


def test_an_unexpected_error_in_a_check_is_reported_and_the_check_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disagg_cluster.telemetry.steps.fpm_feed.CHECK_SECONDS", 0.02)
    ledger, seen_failing = books(), False
    trips = iter([ValueError("a bug of ours")] * 3)

    def sockets(address: str) -> frozenset[int]:
        nonlocal seen_failing
        if (error := next(trips, None)) is not None:
            raise error
        seen_failing = seen_failing or not hearing.collectors()[0].success
        return listening_sockets(address)

    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address, sockets=sockets)

        def publish() -> None:
            publisher.wait_for_subscriber()
            publisher.send(STEP)

        heard(hearing, publish, lambda: hearing.received_ns is not None)

    assert seen_failing
    assert hearing.collectors()[0].unexpected_failures == 3


def test_an_unexpected_error_in_one_message_does_not_stop_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = books()
    step, trips = ledger.step, iter([ValueError("a bug of ours")])

    def trip(*arguments: Any, **named: Any) -> None:
        if (error := next(trips, None)) is not None:
            raise error
        step(*arguments, **named)

    monkeypatch.setattr(ledger, "step", trip)
    with Publisher() as publisher:
        hearing = feed(ledger, publisher.address)

        def publish() -> None:
            publisher.wait_for_subscriber()
            for _ in range(11):
                publisher.send(STEP)

        heard(hearing, publish, lambda: told(ledger)[0] > 0)

    assert hearing.collectors()[0].unexpected_failures == 1
