"""The sockets of pods, over real folders, a real loop and the plugin's own sender."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.discovery.kubernetes.pods import Pod
from disagg_cluster.discovery.pod_steps.admission import (
    ANNOTATION,
    SILENT_SECONDS,
    STRANGE_SECONDS,
)
from disagg_cluster.discovery.pod_steps.sockets import MAX_CONNECTIONS, PodStepSockets
from disagg_exporter.inside_engine.disagg_steps.sender import Facts, Sender
from disagg_exporter.steps.messages import StepEvent, StepRecords
from support.async_tests import async_test, until
from support.fake_api_server import uid_of

A, B = uid_of("a"), uid_of("b")
DECODE_STEP = Facts(elapsed_ns=1000, generation_requests=1, generation_tokens=1, running=1)


def pod(uid: str) -> Pod:
    return Pod(uid, f"p-{uid[:4]}", "llm", annotations={ANNOTATION: "true"}, phase="Running")


class RecordingSockets:
    """The sockets of one root, and what was received by pod."""

    def __init__(self, root: Path) -> None:
        self.received: list[tuple[str, StepEvent]] = []
        self.root = root
        self.later_ns = 0
        self.steps = PodStepSockets(
            root,
            lambda uid, event: self.received.append((uid, event)),
            clock_ns=lambda: time.monotonic_ns() + self.later_ns,
        )

    def keep(self, *uids: str, is_current: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.steps.keep([pod(uid) for uid in uids], loop, is_current=is_current)

    def taken(self, uid: str) -> int:
        """How many steps of a pod were received."""
        ours = [event for found, event in self.received if found == uid]
        return sum(len(event.rows) for event in ours if isinstance(event, StepRecords))


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dn-"))
    yield folder / "pods"
    shutil.rmtree(folder)


@pytest.fixture
def sockets(root: Path) -> Iterator[RecordingSockets]:
    sockets = RecordingSockets(root)
    yield sockets
    sockets.steps.close()


def sender_of(root: Path, uid: str) -> Sender:
    sender = Sender(str(root / uid / "steps.sock"))
    sender.beat()
    return sender


@async_test
async def test_each_pod_has_its_own_socket(sockets: RecordingSockets) -> None:
    sockets.keep(A, B)
    a, b = sender_of(sockets.root, A), sender_of(sockets.root, B)
    a.step(DECODE_STEP, time.monotonic_ns())
    b.step(DECODE_STEP, time.monotonic_ns())
    b.step(DECODE_STEP, time.monotonic_ns())
    b.beat()

    await until(lambda: (sockets.taken(A), sockets.taken(B)) == (1, 2))

    assert {told.key.engine for uid, told in sockets.received if uid == A} == {A}
    assert sockets.steps.collectors()[0].success
    a.close()
    b.close()


@async_test
async def test_any_user_may_connect_and_none_may_list_the_folder(sockets: RecordingSockets) -> None:
    sockets.keep(A)

    folder = sockets.root / A
    assert stat.S_IMODE((folder / "steps.sock").stat().st_mode) == 0o666
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert stat.S_IMODE(sockets.root.stat().st_mode) == 0o711


@async_test
async def test_the_folder_of_a_deleted_pod_is_removed(sockets: RecordingSockets) -> None:
    sockets.keep(A, B)
    sender = sender_of(sockets.root, A)

    sockets.keep(B)

    assert sorted(entry.name for entry in sockets.root.iterdir()) == [B]
    assert sockets.steps.counts(A) is None
    sender.close()


@async_test
async def test_folders_left_by_a_daemon_before_are_removed_after_a_while(
    sockets: RecordingSockets,
) -> None:
    (sockets.root / A).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(sockets.root / A / "steps.sock"))

    sockets.keep()
    assert (sockets.root / A).exists()
    sockets.later_ns = round(1e9 * (STRANGE_SECONDS + 1))
    sockets.keep()

    assert list(sockets.root.iterdir()) == []


@async_test
async def test_a_new_daemon_takes_the_sockets_over(root: Path) -> None:
    first, second = RecordingSockets(root), RecordingSockets(root)
    first.keep(A)
    sender = sender_of(root, A)
    first.steps.close()
    second.keep(A)
    # Closed one beat after it was found dead, opened at the next.
    for _ in range(3):
        sender.beat()
    sender.step(DECODE_STEP, time.monotonic_ns())

    await until(lambda: second.taken(A) == 1)
    second.steps.close()
    sender.close()


def spoil_with_a_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "steps.sock").write_text("mine")


def spoil_with_a_link(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "steps.sock").symlink_to("/etc/passwd")


def spoil_with_a_listener(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "steps.sock").mkdir()


def spoil_the_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.symlink_to("/etc")


@pytest.mark.parametrize(
    "spoil", [spoil_with_a_file, spoil_with_a_link, spoil_with_a_listener, spoil_the_folder]
)
@async_test
async def test_an_obstacle_in_a_pods_folder_affects_only_that_pod(
    sockets: RecordingSockets, spoil: object
) -> None:
    assert callable(spoil)
    spoil(sockets.root / A)
    passwd = Path("/etc/passwd").stat()

    sockets.keep(A, B)

    assert sockets.steps.counts(A) is None
    assert sockets.steps.counts(B) is not None
    assert not sockets.steps.collectors()[0].success
    assert A in sockets.steps.problems()[0]
    sockets.keep(B)
    assert Path("/etc/passwd").stat() == passwd
    assert stat.S_IMODE(Path("/etc").stat().st_mode) != 0o711


@async_test
async def test_files_left_by_a_pod_are_not_removed(sockets: RecordingSockets) -> None:
    sockets.keep(A)
    (sockets.root / A / "big").mkdir()

    sockets.keep()

    assert [entry.name for entry in (sockets.root / A).iterdir()] == ["big"]
    assert "left files" in sockets.steps.problems()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@async_test
async def test_a_folder_of_another_user_is_not_used(sockets: RecordingSockets) -> None:
    (sockets.root / A).mkdir(parents=True)
    os.chown(sockets.root / A, 12345, 12345)

    sockets.keep(A)

    assert "somebody else" in sockets.steps.problems()[0]


@async_test
async def test_a_root_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    root.symlink_to(tmp_path)
    sockets = RecordingSockets(root)

    sockets.keep(A)

    assert list(tmp_path.iterdir()) == []
    assert not sockets.steps.collectors()[0].success


@async_test
async def test_a_flooding_pod_is_rate_limited_and_its_neighbour_is_not(
    sockets: RecordingSockets,
) -> None:
    sockets.keep(A, B)
    flooding, calm = sender_of(sockets.root, A), sender_of(sockets.root, B)
    began = time.monotonic()
    for _ in range(20_000):
        flooding.step(DECODE_STEP, time.monotonic_ns())
        if flooding.drops:
            break
        await asyncio.sleep(0)
    calm.step(DECODE_STEP, time.monotonic_ns())

    await until(lambda: sockets.taken(B) == 1)

    # A second's worth at once, and then at the permitted rate.
    assert sockets.taken(A) <= 4000 * (2 + time.monotonic() - began)
    flooding.close()
    calm.close()


@async_test
async def test_connections_of_one_pod_are_bounded(sockets: RecordingSockets) -> None:
    sockets.keep(A)
    links = []
    for _ in range(MAX_CONNECTIONS + 20):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect(str(sockets.root / A / "steps.sock"))
        except BlockingIOError:
            # The queue is full until the loop has run once.
            await asyncio.sleep(0.01)
            link.connect(str(sockets.root / A / "steps.sock"))
        links.append(link)

    def refused() -> int:
        counts = sockets.steps.counts(A)
        return counts.refused if counts else 0

    await until(lambda: refused() == 20)
    counts = sockets.steps.counts(A)
    assert counts is not None
    assert counts.connected == MAX_CONNECTIONS
    for link in links:
        link.close()


@async_test
async def test_toggling_the_annotation_resets_no_limits(
    sockets: RecordingSockets, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    sockets.keep(A)
    for at in range(3):
        for _ in range(100):
            sender_of(sockets.root, A).close()
            sockets.steps.drain(A)
        sockets.steps.keep([replace(pod(A), annotations={})], loop, is_current=True)
        sockets.keep(A)
        assert len({told.key for _, told in sockets.received}) <= 65, f"round {at}"

    assert [record.message for record in caplog.records] == [
        f"pod_steps: llm/p-{A[:4]} sent data that no engine sends; it was refused"
    ]


@async_test
async def test_a_requesting_pod_without_steps_is_named(
    sockets: RecordingSockets, caplog: pytest.LogCaptureFixture
) -> None:
    sockets.keep(A, B)
    sender = sender_of(sockets.root, B)
    sockets.steps.drain(B)
    sockets.later_ns += round(1e9 * (SILENT_SECONDS + 1))
    sockets.keep(A, B)

    (record,) = caplog.records
    assert f"llm/p-{A[:4]} requested a steps socket but has sent nothing" in record.message
    sender.close()


@async_test
async def test_a_silent_follower_gets_no_warning(
    sockets: RecordingSockets, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(2):
        sockets.steps.keep([pod(A)], loop, is_current=True, followers={A})
        sockets.later_ns += round(1e9 * (SILENT_SECONDS + 1))

    assert caplog.records == []


@async_test
async def test_a_pods_last_steps_are_received_before_its_socket_closes(
    sockets: RecordingSockets,
) -> None:
    sockets.keep(A)
    sender = sender_of(sockets.root, A)
    sockets.steps.drain(A)
    sender.step(DECODE_STEP, time.monotonic_ns())

    sockets.keep()

    assert sockets.taken(A) == 1
    sender.close()
