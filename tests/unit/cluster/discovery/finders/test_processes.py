"""Engines found among real processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.discovery.finders import processes
from disagg_cluster.discovery.finders.processes import NAMES_KEPT, ProcessFinder, visible_gpus
from disagg_cluster.discovery.finders.servers import find_servers
from disagg_cluster.discovery.observations.types import Endpoint, Leader, Observation
from disagg_cluster.host.processes.process_table import OLD_SCANS, YOUNG_SCANS, ProcessTable
from disagg_cluster.host.tcp_listeners import socket_inodes
from disagg_exporter.model import Device, DeviceReading
from support.fake_engines import FakeEngine, install

DEVICES = [Device(f"GPU-{n}{n}", n, "H100", f"nvidia{n}") for n in range(4)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., FakeEngine]]:
    """Starts engines; ends them all."""
    install(tmp_path)
    with ExitStack() as stack:
        yield lambda *arguments, **more: stack.enter_context(
            FakeEngine(*arguments, folder=tmp_path, **more)
        )


def seen(finder: ProcessFinder, engine: FakeEngine, *, listening: bool = True) -> Observation:
    """Wait until an engine is found."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for observation in finder.scan().observations:
            at_work = observation.also_at or not listening
            if observation.leader and observation.leader.pid == engine.process.pid and at_work:
                return observation
    raise AssertionError(f"{engine} was not seen")


@pytest.mark.parametrize("kind", ["vllm", "sglang", "dynamo"])
def test_an_engine_is_found_with_its_kind_and_its_port(
    engine: Callable[..., FakeEngine], kind: str
) -> None:
    started = engine(kind)

    found = seen(ProcessFinder(tuple), started)

    assert (found.kind, found.endpoints) == (kind, (Endpoint("127.0.0.1", started.port),))


def test_an_engine_on_all_ipv6_addresses_is_reached_by_either_loopback(
    engine: Callable[..., FakeEngine],
) -> None:
    """Whether its socket takes IPv4 as well shows in no table: asyncio's servers do not."""
    started = engine("sglang", environment={"FAKE_HOST": "::"})

    found = seen(ProcessFinder(tuple), started)

    assert found.endpoints == (
        Endpoint("127.0.0.1", started.port),
        Endpoint("::1", started.port),
    )


def test_an_engine_with_a_process_that_may_not_be_looked_into_is_found(
    engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that has just ended: until it is waited for, only root may list its descriptors."""
    started = engine("vllm")

    def sockets(pid: int) -> Iterator[int]:
        if pid != started.process.pid:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return socket_inodes(pid)

    monkeypatch.setattr(processes, "socket_inodes", sockets)
    monkeypatch.setattr(
        processes,
        "find_servers",
        lambda table: tuple(replace(s, pids=s.pids | {1}) for s in find_servers(table)),
    )

    found = seen(ProcessFinder(tuple), started)

    assert found.endpoints == (Endpoint("127.0.0.1", started.port),)


def test_other_listening_ports_are_known_and_never_scraped(
    engine: Callable[..., FakeEngine],
) -> None:
    """An engine's own parts and peers talk there, in protocols other than HTTP."""
    started = engine("vllm", arguments=("--port", "1"))

    found = seen(ProcessFinder(tuple), started, listening=False)

    assert found.endpoints == ()
    assert found.also_at == (Endpoint("127.0.0.1", started.port),)


def test_only_listed_variables_are_kept(engine: Callable[..., FakeEngine]) -> None:
    secrets = {"HF_TOKEN": "s3cret", "DYN_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    started = engine("vllm", environment={**secrets, "ROLE_NAME": "prefill"})

    found = seen(ProcessFinder(tuple), started)

    assert found.markers.env == {"ROLE_NAME": "prefill"}
    assert not secrets.keys() & NAMES_KEPT


def test_an_engine_has_the_gpus_it_computes_on(engine: Callable[..., FakeEngine]) -> None:
    started = engine("vllm")
    pids = (started.process.pid,)
    readings = [DeviceReading(f"GPU-{n}{n}", 0, pids=pids if n else ()) for n in range(3)]

    found = seen(ProcessFinder(lambda: readings, DEVICES), started, listening=False)

    assert found.gpus == ("GPU-11", "GPU-22")


def test_an_engine_keeps_its_gpus_while_the_driver_reads_none_or_some_of_them(
    engine: Callable[..., FakeEngine],
) -> None:
    started = engine("vllm")
    both = [DeviceReading(f"GPU-{n}{n}", 0, pids=(started.process.pid,)) for n in range(2)]
    told = list(both)
    finder = ProcessFinder(lambda: told, DEVICES)
    gpus = [seen(finder, started).gpus]

    for readings in (both[:1], [], [DeviceReading("GPU-00", 0), both[1]]):
        told[:] = readings
        gpus.append(seen(finder, started).gpus)

    assert gpus == [("GPU-00", "GPU-11")] * 4


def test_an_engine_leaves_a_gpu_on_which_the_driver_no_longer_lists_it(
    engine: Callable[..., FakeEngine],
) -> None:
    started = engine("vllm")
    told = [DeviceReading(f"GPU-{n}{n}", 0, pids=(started.process.pid,)) for n in range(2)]
    finder = ProcessFinder(lambda: told, DEVICES)
    seen(finder, started)

    told[1] = DeviceReading("GPU-11", 0, process_memory=())

    assert seen(finder, started).gpus == ("GPU-00",)


def test_a_process_with_a_reused_pid_has_no_gpu_of_a_driver_that_is_silent(
    engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = engine("vllm")
    told = [DeviceReading("GPU-00", 0, pids=(started.process.pid,))]
    finder = ProcessFinder(lambda: told, DEVICES)
    assert seen(finder, started).gpus == ("GPU-00",)
    told.clear()

    table = ProcessTable(Path("/proc")).read()
    later = {
        pid: replace(process, start_ticks=process.start_ticks + 1) for pid, process in table.items()
    }
    monkeypatch.setattr(finder._table, "read", lambda: later)

    assert seen(finder, started).gpus is None


def test_a_variable_cannot_claim_a_gpu_with_known_processes(
    engine: Callable[..., FakeEngine],
) -> None:
    """A process that only pretends to be an engine must not share its neighbour's time."""
    pretender = engine("vllm", environment={"CUDA_VISIBLE_DEVICES": "1,2"})
    readings = [DeviceReading("GPU-11", 0, pids=(os.getpid(),))]

    found = seen(ProcessFinder(lambda: readings, DEVICES), pretender)

    assert found.gpus == ("GPU-22",)


def test_our_own_engines_are_never_found(engine: Callable[..., FakeEngine]) -> None:
    ours, other = engine("vllm"), engine("vllm")
    finder = ProcessFinder(tuple, ours=lambda: (ours.process.pid,))

    seen(finder, other)

    leaders = {s.leader.pid for s in finder.scan().observations if s.leader}
    assert ours.process.pid not in leaders


def process(proc: Path, pid: int, command: str, *, session: int = 1) -> None:
    """A process as in /proc, a child of the first one."""
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    stat = f"{pid} (x) S 1 {session} {session} " + "0 " * 15 + "5\n"
    (proc / str(pid) / "stat").write_text(stat)


def test_orphans_of_our_own_engines_are_not_found(
    tmp_path: Path,
) -> None:
    process(tmp_path, 11, "VLLM::EngineCore", session=10)
    ours = {10}
    readings = [DeviceReading("GPU-11", 0, pids=(11,))]
    finder = ProcessFinder(lambda: readings, DEVICES, ours=lambda: ours, proc=tmp_path)
    assert finder.scan().observations == ()

    ours.clear()
    assert finder.scan().observations == (), "its leader has just died"
    [orphan] = finder.scan().observations
    assert orphan.leader == Leader(11, 5)


def test_an_engine_is_read_at_each_scan(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    process(tmp_path, 7, "vllm serve a")
    for _ in range(YOUNG_SCANS + 1):
        table.read()

    process(tmp_path, 7, "vllm serve b")

    assert table.read()[7].argv == ("vllm", "serve", "b")


def test_an_old_shell_that_becomes_an_engine_is_eventually_found(tmp_path: Path) -> None:
    """Thousands of old processes that are no engines are cheap, and none is forgotten."""
    table = ProcessTable(tmp_path)
    process(tmp_path, 7, "bash start.sh")
    for _ in range(YOUNG_SCANS + 1):
        table.read()

    process(tmp_path, 7, "vllm serve a")

    looks = next(n for n in range(1, 1 + OLD_SCANS) if table.read()[7].argv)
    assert 1 < looks <= OLD_SCANS
    (tmp_path / "7" / "cmdline").unlink()
    assert table.read() == {}


def instead(proc: Path, pid: int, command: str) -> None:
    """Another process under a pid: the kernel creates a new folder for it."""
    (proc / "new").mkdir()
    process(proc / "new", pid, command)
    (proc / str(pid)).rename(proc / f"gone-{len(list(proc.iterdir()))}")
    (proc / "new" / str(pid)).rename(proc / str(pid))
    (proc / "new").rmdir()


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    process(tmp_path, 7, "bash start.sh")
    for _ in range(YOUNG_SCANS + 1):
        table.read()

    instead(tmp_path, 7, "vllm serve a")

    assert table.read()[7].argv == ("vllm", "serve", "a")


def test_a_process_with_a_reused_pid_is_rescanned_as_young(tmp_path: Path) -> None:
    """A shell that becomes an engine within its first scans is found at the next one."""
    table = ProcessTable(tmp_path)
    process(tmp_path, 7, "bash start.sh")
    for _ in range(YOUNG_SCANS + 1):
        table.read()

    instead(tmp_path, 7, "bash other.sh")
    stat = tmp_path / "7" / "stat"
    stat.write_text(stat.read_text().replace(" 5\n", " 9\n"))
    table.read()
    (tmp_path / "7" / "cmdline").write_bytes(b"vllm\0serve\0a\0")

    assert table.read()[7].argv == ("vllm", "serve", "a")


def test_invisible_gpu_processes_are_reported_with_the_missing_right() -> None:
    elsewhere = (DeviceReading("GPU-22", 0, pids=(1 << 22,)),)

    assert "hostPID" in ProcessFinder(lambda: elsewhere, DEVICES).scan().lost


def test_a_host_without_proc_is_reported(tmp_path: Path) -> None:
    look = ProcessFinder(tuple, proc=tmp_path / "no").scan()

    assert look.observations == ()
    assert "cannot be listed" in look.lost


def test_a_hostile_command_line_costs_little(tmp_path: Path) -> None:
    """Megabytes of arguments, no UTF-8, a name with brackets, a process that has just exited."""
    for pid, cmdline in {
        "10": b"python\0vllm\0serve\0" + b"--x\0" * 1_000_000,
        "11": b"\xff\xfe\0vllm\0\0\0",
        "12": b"",
    }.items():
        folder = tmp_path / pid
        folder.mkdir()
        (folder / "cmdline").write_bytes(cmdline)
        fields = "S 1 " + " ".join("0" for _ in range(20))
        (folder / "stat").write_text(f"{pid} (a) b) {fields}")
    (tmp_path / "13").mkdir()

    table = ProcessTable(tmp_path).read()

    assert table.keys() == {10, 11}
    assert sum(len(word) for word in table[10].argv) < 128 * 1024
    ProcessFinder(tuple, proc=tmp_path).scan()


@pytest.mark.parametrize(
    ("text", "contained", "expected"),
    [
        ("0,2", False, ("GPU-00", "GPU-22")),
        ("0,2", True, ()),
        ("GPU-11", True, ("GPU-11",)),
        ("GPU-1", True, ("GPU-11",)),
        ("GPU-", True, ()),
        ("1,-1,2", False, ("GPU-11",)),
        ("9", False, ()),
        ("NoDevFiles", False, ()),
        ("", False, ()),
        (None, False, ()),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    text: str | None, contained: bool, expected: tuple[str, ...]
) -> None:
    assert visible_gpus(text, DEVICES, contained=contained) == expected


@pytest.mark.parametrize(
    ("control_group", "gpus"),
    [
        ("0::/user.slice/session-1.scope", ("GPU-11",)),
        ("0::/kubepods/burstable/pod5f0c5f0c-0000-4000-8000-000000000000/5f0c", None),
        ("0::/../../pod5f0c5f0c-0000-4000-8000-000000000000/5f0c", None),
    ],
)
def test_numbers_of_gpus_count_for_processes_outside_containers_only(
    tmp_path: Path, control_group: str, gpus: tuple[str, ...] | None
) -> None:
    process(tmp_path, 11, "vllm serve m --port 8000")
    (tmp_path / "11" / "cgroup").write_text(control_group + "\n")
    (tmp_path / "11" / "environ").write_bytes(b"CUDA_VISIBLE_DEVICES=1\0")
    finder = ProcessFinder(tuple, DEVICES, proc=tmp_path)
    (server,) = find_servers(ProcessTable(tmp_path).read())

    assert finder._observation(server, {}, set()).gpus == gpus


def test_a_scan_leaves_no_descriptor_open() -> None:
    finder = ProcessFinder(tuple)
    finder.scan()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as many as there are

    finder.scan()

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
