"""Finds engines among the processes of this host: their arguments, their ports, their GPUs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from disagg_cluster.discovery.finders.servers import (
    EngineServer,
    PartCache,
    certificate_file,
    find_servers,
    port_argument,
)
from disagg_cluster.discovery.observations.types import (
    Endpoint,
    Finder,
    Leader,
    Observation,
    Scan,
    port_of,
)
from disagg_cluster.host.processes.process_table import (
    HostProcess,
    ProcessTable,
    ancestors,
    environment,
    read_bytes,
)
from disagg_cluster.host.tcp_listeners import all_listeners, socket_inodes
from disagg_cluster.telemetry.steps.fpm_addresses import DYNAMO_PORT_VARIABLE
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Device, DeviceReading
from disagg_exporter.model.counted import agreeing, counted
from disagg_exporter.roles.evidence.environment import NAMES_READ
from disagg_exporter.roles.evidence.types import Markers

MAX_ADDRESSES = 64
LOOPBACK, _LOOPBACK_6 = "127.0.0.1", "::1"
_SYSTEM_PORT = "DYN_SYSTEM_PORT"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
NAMES_KEPT = NAMES_READ | {
    _SYSTEM_PORT,
    _VISIBLE,
    DYNAMO_PORT_VARIABLE,
    wire.SOCKET_ENVIRONMENT,
}
"""All variables that are ever kept of a process's environment."""

# A pod's UID in the name of a control group: with dashes, or with underscores under systemd.
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_LOCAL_ADDRESS = re.compile(rb"\|-- ([0-9.]+)\n\s+/32 host LOCAL")

_CONTAINER = re.compile(rb"docker|kubepods|containerd|crio|libpod|lxc")


class ProcessFinder:
    """Scans the processes of this host and the resources they hold.

    Args:
        readings: The last readings of the devices, for the processes on each.
        devices: The devices of this node.
        ours: Processes that we started ourselves; they and their children are never found.
        proc: Replaceable for tests.
    """

    finder = Finder.PROCESSES

    def __init__(
        self,
        readings: Callable[[], Sequence[DeviceReading]],
        devices: Sequence[Device] = (),
        ours: Callable[[], Iterable[int]] = tuple,
        *,
        proc: Path = Path("/proc"),
    ) -> None:
        self._readings = readings
        self._devices = tuple(devices)
        self._ours = ours
        self._proc = proc
        self._table = ProcessTable(proc)
        self._ours_before: frozenset[int] = frozenset()
        self._parts = PartCache()
        # The start ticks of the processes last known on each GPU, by pid; None if not visible.
        self._last_on: dict[str, dict[int, int | None]] = {}

    def scan(self) -> Scan:
        """Return the current engines: processes that listen on a port, or compute on a GPU."""
        try:
            table = self._table.read()
        except OSError as error:
            lost = f"the processes of this host cannot be listed: {error.strerror}"
            return Scan(lost=lost, failed=True)
        on_gpu = self._gpus_by_process(table)
        # Orphans of one of our engines are not reported while they are being terminated.
        ours = frozenset(self._ours())
        lately, self._ours_before = ours | self._ours_before, ours
        servers = [s for s in find_servers(table) if not _started_by(lately, s, table)]
        # Where the driver sees which processes use a GPU, a variable cannot claim it.
        settled = {gpu for pid in table.keys() & on_gpu.keys() for gpu in on_gpu[pid]}
        self._parts.begin()
        seen = [self._observation(server, on_gpu, settled) for server in servers]
        found = tuple(s for s in seen if s.also_at or s.gpus)
        return Scan(found, _missing(table, on_gpu, servers, found))

    def _gpus_by_process(self, table: Mapping[int, HostProcess]) -> dict[int, list[str]]:
        """Return the GPUs that each process computes on.

        A GPU that cannot be read now still has the processes it had, as long as they live: an
        engine does not leave it because the driver is silent, and its steps hold it meanwhile.
        """
        listed: set[str] = set()
        for reading in self._readings():
            if reading.pids or reading.process_memory is not None:
                listed.add(reading.gpu)
                ticks = {
                    pid: table[pid].start_ticks if pid in table else None for pid in reading.pids
                }
                self._last_on[reading.gpu] = ticks
        on_gpu: dict[int, list[str]] = {}
        for gpu, processes in self._last_on.items():
            for pid, start_ticks in processes.items():
                if gpu in listed or (pid in table and table[pid].start_ticks == start_ticks):
                    on_gpu.setdefault(pid, []).append(gpu)
        return on_gpu

    def _observation(
        self, server: EngineServer, on_gpu: Mapping[int, Sequence[str]], settled: Set[str]
    ) -> Observation:
        pid = server.process.pid
        kept = environment(pid, NAMES_KEPT, self._proc)
        listening = sorted(self._listening(server))
        part = self._parts.of(server, kept)
        # Engines also listen for their own parts and peers, and not all of those ports accept a
        # GET. The port of an SGLang follower is its leader's, or unused.
        follows = part is not None and part.follows
        likely = () if follows else tuple(_likely_ports(server, kept))
        groups = read_bytes(f"{self._proc}/{pid}/cgroup", 65536)
        pod = _POD.search(groups)
        certificate = certificate_file(server.process.argv, kept, server.kind)
        gpus: tuple[str, ...] | None = None
        if on_gpu:
            held = (gpu for p in sorted(server.pids & on_gpu.keys()) for gpu in on_gpu[p])
            gpus = tuple(dict.fromkeys(held))
        if not gpus:
            visible = kept.get(_VISIBLE)
            # From inside a pod, another's control group is `/../../podUID/…` under cgroupfs.
            contained = pod is not None or _CONTAINER.search(groups) is not None
            said = visible_gpus(visible, self._devices, contained=contained)
            gpus = tuple(gpu for gpu in said if gpu not in settled) or gpus
        return Observation(
            finder=Finder.PROCESSES,
            kind=server.kind,
            endpoints=tuple(
                replace(e, tls=certificate is not None)
                for port in likely
                for e in listening
                if e.port == port
            ),
            also_at=tuple(listening[:MAX_ADDRESSES]),
            leader=Leader(pid, server.process.start_ticks),
            pids=server.pids,
            gpus=gpus,
            port_argument=likely[0] if likely else None,
            markers=Markers(argv=server.process.argv, env=kept),
            pod_uid=pod[1].decode().replace("_", "-") if pod else "",
            part=part,
            certificate_file=certificate,
        )

    def _listening(self, server: EngineServer) -> Iterator[Endpoint]:
        """Yield where the engine's processes listen, as this host reaches them."""
        pid = server.process.pid
        here = _network(self._proc / "self") == _network(self._proc / str(pid))
        net = self._proc / str(pid) / "net"
        try:
            sockets = all_listeners(None if here else net)
        except OSError:
            return
        held: set[int] = set()
        for member in server.pids:
            # Only root may look into one that has ended and was not waited for yet.
            with contextlib.suppress(OSError):
                held.update(socket_inodes(member))
        for inode in held & sockets.keys():
            address, port = sockets[inode]
            if not address.is_unspecified:
                reached = [str(address)] if here or not address.is_loopback else []
            elif not here:
                reached = [_own_address(net)]
            else:
                # A socket on all IPv6 addresses may leave out IPv4: no table shows it.
                reached = [LOOPBACK, *([_LOOPBACK_6] if address.version == 6 else [])]
            yield from (Endpoint(host, port) for host in reached if host)


def _likely_ports(server: EngineServer, kept: Mapping[str, str]) -> Iterator[int]:
    """Yield the ports where an engine is configured to serve its page, the likeliest first."""
    system = port_of(kept.get(_SYSTEM_PORT, ""))
    port = port_argument(server.process.argv, server.kind)
    yield from (each for each in (system, port) if each is not None)


def visible_gpus(
    text: str | None, devices: Sequence[Device], *, contained: bool
) -> tuple[str, ...]:
    """Return the GPUs to which `CUDA_VISIBLE_DEVICES` confines a process, as far as it says.

    Args:
        text: The variable's value.
        devices: The devices of this node.
        contained: The process is in a container, where numbers count the container's own GPUs.
    """
    found = []
    for word in (text or "").split(","):
        word = word.strip()
        named = [d for d in devices if word.startswith(("GPU-", "MIG-")) and d.gpu.startswith(word)]
        if word.isdecimal() and not contained:
            named = [d for d in devices if d.index == int(word[:6])]
        if len(named) != 1:
            break  # CUDA, too, ends its list at what it does not know
        found.append(named[0].gpu)
    return tuple(dict.fromkeys(found))


def _started_by(
    ours: frozenset[int], server: EngineServer, table: Mapping[int, HostProcess]
) -> bool:
    above = (process.pid for process in ancestors(server.process.pid, table))
    return (
        bool(server.pids & ours)
        or any(pid in ours for pid in above)
        # Its parents may be gone; the session that we gave it remains.
        or server.process.session in ours
    )


def _missing(
    table: Mapping[int, HostProcess],
    on_gpu: Mapping[int, Sequence[str]],
    servers: Sequence[EngineServer],
    found: Sequence[Observation],
) -> str:
    if on_gpu and not table.keys() & on_gpu.keys():
        return (
            "the processes on the GPUs are not among those that we see, so it is not known which "
            "engine is on which GPU: share the host's PID namespace (hostPID)"
        )
    hidden = len(servers) - len(found)
    if hidden and os.geteuid() != 0:
        return (
            f"{counted(hidden, 'engine')} {agreeing(hidden, 'belongs', 'belong')} to users whose "
            "processes we may not look into: run as their user or as root (CAP_SYS_PTRACE)"
        )
    return ""


def _network(process: Path) -> str:
    """Return the kernel's name of a process's network namespace; empty if it is not readable."""
    try:
        return os.readlink(process / "ns/net")  # noqa: PTH115 - it is not a path
    except OSError:
        return ""


def _own_address(net: Path) -> str:
    """Return the address of another network namespace; empty if it has none, or several."""
    table = read_bytes(str(net / "fib_trie"), 1 << 20)
    own = {match[1].decode() for match in _LOCAL_ADDRESS.finditer(table)}
    outer = sorted(address for address in own if not address.startswith("127."))
    return outer[0] if len(outer) == 1 else ""
