"""Which processes of a host are servers of engines, with what TLS, and their worker groups; pure.

Worker groups are processes of an engine that its server did not start. TensorRT-LLM's
`trtllm-llmapi-launch` runs one rank per GPU: the server beside rank 0, and on every node processes
that wait for its work. vLLM's workers under Ray are children of that node's raylet. If the server
is on this node, they belong to it; elsewhere they are followers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.discovery.observations.types import port_of
from disagg_cluster.host.processes.process_table import HostProcess, ancestors, descendants
from disagg_exporter.roles.command_line.flags import CERTIFICATE_FILE, read_flags
from disagg_exporter.roles.command_line.programs import Program
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.command_line.spanning import EnginePart, is_host_port
from disagg_exporter.roles.evidence.command_line import parse_command_line

_RANK = re.compile(r"tensorrt_llm\.llmapi\.mgmn_(leader|worker)_node")
_LAUNCHER = "trtllm-llmapi-launch"
_RAY_WORKER = re.compile(r"ray::RayWorker(Wrapper|Proc)\b|VLLM::Worker")
_RAYLET = "raylet"


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Processes that one program has started here for one engine: `starter` is its pid.

    `command` is what they serve, empty if unknown. `head` is the nodes' rendezvous address, also
    empty if unknown.
    """

    process: HostProcess
    kind: str
    starter: int
    pids: frozenset[int]
    command: tuple[str, ...] = ()
    head: str = ""


def find_worker_groups(table: Mapping[int, HostProcess]) -> tuple[WorkerGroup, ...]:
    """Return the groups among the processes of a node."""
    found: dict[tuple[str, int], list[HostProcess]] = {}
    for process in table.values():
        if process.argv and any(map(_RANK.fullmatch, process.argv[1:4])):
            found.setdefault(("trtllm", starter_of(process, table)), []).append(process)
        elif process.argv and _RAY_WORKER.match(process.argv[0]):
            # Only a direct child: below a replica of Ray Serve there are workers of that replica.
            above = table.get(process.parent)
            if above is not None and above.program == _RAYLET:
                found.setdefault(("vllm", above.pid), []).append(process)
    return tuple(_worker_group(*key, members, table) for key, members in sorted(found.items()))


def starter_of(process: HostProcess, table: Mapping[int, HostProcess]) -> int:
    """Return the program that started a rank and its siblings: above each rank's wrapper script."""
    top = process
    for above in ancestors(process.pid, table):
        if not _wraps(above):
            break
        top = above
    return top.parent


def is_wrapped(process: HostProcess, table: Mapping[int, HostProcess]) -> bool:
    """Return whether a server was started for ranks that wait in other processes."""
    return any(map(_wraps, ancestors(process.pid, table)))


def is_for_ray(process: HostProcess) -> bool:
    """Return whether a server is configured to start its workers with Ray."""
    flags = read_flags(process.argv)
    return flags.value("distributed-executor-backend") == "ray" or flags.has("worker-use-ray")


def _worker_group(
    kind: str, starter: int, members: list[HostProcess], table: Mapping[int, HostProcess]
) -> WorkerGroup:
    first = min(members, key=lambda process: process.pid)
    pids = descendants((process.pid for process in members), table)
    if kind == "vllm":
        head = read_flags(table[starter].argv).value("gcs-address") or ""
        return WorkerGroup(first, kind, starter, pids, head=head if is_host_port(head) else "")
    return WorkerGroup(first, kind, starter, pids, next(_commands(first, table), ()))


def _commands(rank: HostProcess, table: Mapping[int, HostProcess]) -> Iterator[tuple[str, ...]]:
    """Yield the commands that the script around a rank was given to run."""
    for above in ancestors(rank.pid, table):
        for at, word in enumerate(above.argv[:4]):
            if program_name(word) == _LAUNCHER:
                yield above.argv[at + 1 :]


def _wraps(process: HostProcess) -> bool:
    return any(program_name(word) == _LAUNCHER for word in process.argv[:4])


UNKNOWN_FILE = ""
"""Stands for a certificate whose file is unknown."""

# Dynamo's workers have their own server beside the engine's options, which does not speak TLS.
_WITH_SERVER = ("vllm", "sglang")


def certificate_file(argv: Sequence[str], env: Mapping[str, str], kind: str) -> str | None:
    """Return the file of the certificate that an engine presents; None if it serves no TLS.

    `UNKNOWN_FILE` if the file is given by an unresolved variable.

    Args:
        argv: Its command line, a shell's script included.
        env: The variables that may occur in it.
        kind: The kind of engine.
    """
    if kind not in _WITH_SERVER:
        return None
    file = parse_command_line(argv, env).option(CERTIFICATE_FILE)
    if file is None:
        return None
    return UNKNOWN_FILE if not file or "$" in file or "\0" in file else file


# Programs that engines run as. Wrappers, clients (`docker run … vllm serve`) and people's tools
# (`grep vllm`) name an engine too, and are none; a relevant wrapper has the engine as a child.
_RUNS_AS = re.compile(r"(python|pypy)[\d.]*t?|vllm|sglang|trtllm-serve|lmdeploy|tritonserver")
_RUNS_AS_NAMED = re.compile(r"llm-d-inference-sim[\w.-]*")
# The parts of an engine set their process title where they can (setproctitle).
_PART = re.compile(r"(?P<kind>VLLM|sglang)::\w+")
_KINDS = {
    Program.VLLM: "vllm",
    Program.SGLANG: "sglang",
    Program.ENCODER: "sglang",
    Program.TENSORRT_LLM: "trtllm",
    Program.DYNAMO_VLLM: "dynamo",
    Program.DYNAMO_SGLANG: "dynamo",
    Program.DYNAMO_TRTLLM: "dynamo",
    Program.DYNAMO_OTHER: "dynamo",
}
_USUAL_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}


@dataclass(frozen=True, slots=True)
class EngineServer:
    """An engine's server process, and all processes of the engine.

    For a group whose server is elsewhere, `process` is one of its ranks, and `part` says so.
    """

    process: HostProcess
    kind: str
    pids: frozenset[int]
    part: EnginePart | None = None


class PartCache:
    """Which part of an engine each server is; a command line is parsed once while it is present."""

    def __init__(self) -> None:
        self._now: dict[object, EnginePart | None] = {}
        self._before: dict[object, EnginePart | None] = {}

    def begin(self) -> None:
        """Begin a scan; entries that the last one did not use are dropped."""
        self._before, self._now = self._now, {}

    def of(self, server: EngineServer, environment: Mapping[str, str]) -> EnginePart | None:
        """Return the part that a server is, by its arguments and variables."""
        if server.part is not None:
            return server.part
        argv = server.process.argv
        key = argv, tuple(environment.items())
        if key not in self._now:
            known = key in self._before
            self._now[key] = (
                self._before[key] if known else parse_command_line(argv, environment).part
            )
        return self._now[key]


def find_servers(table: Mapping[int, HostProcess]) -> tuple[EngineServer, ...]:
    """Return the engines' servers among the processes.

    A server that forked has children with its own command line: they are parts of it. A wrapper has
    a child with another one, which then is the server. Ranks that MPI or Ray started belong to
    their server, or form a follower where it is elsewhere.
    """
    groups = find_worker_groups(table)
    grouped = frozenset[int]().union(*(group.pids for group in groups))
    kinds = {pid: kind for pid, p in table.items() if (kind := engine_kind(p.argv))}
    parts = {
        pid: kind for pid, p in table.items() if pid not in grouped and (kind := _part_of(p.argv))
    }
    for pid, kind in parts.items():
        owner = _owner(table[pid], table, parts)
        if not any(above.pid in kinds for above in (owner, *ancestors(owner.pid, table))):
            # Started by an unknown program: what it runs is still an engine.
            kinds[owner.pid] = kind
    wrappers, folded = set(), set()
    for pid in kinds:
        above = next((p for p in ancestors(pid, table) if p.pid in kinds), None)
        if above is not None and above.argv == table[pid].argv:
            folded.add(pid)
        elif above is not None:
            wrappers.add(above.pid)
    leaders = kinds.keys() - wrappers - folded
    servers = [
        EngineServer(table[pid], kinds[pid], descendants([pid], table)) for pid in sorted(leaders)
    ]
    for group in groups:
        _assign_group(group, servers, table)
    return tuple(servers)


def _assign_group(
    group: WorkerGroup, servers: list[EngineServer], table: Mapping[int, HostProcess]
) -> None:
    """Assign a group to its server here, or make it a follower."""
    if group.kind == "trtllm":
        own = [
            s
            for s in servers
            if is_wrapped(s.process, table) and starter_of(s.process, table) == group.starter
        ]
    else:
        own = [s for s in servers if is_for_ray(s.process)]
    if not own:
        process = replace(group.process, argv=group.command or group.process.argv)
        kind = engine_kind(group.command) or group.kind
        servers.append(
            EngineServer(process, kind, group.pids, EnginePart(group.head, None, follows=True))
        )
    elif len(own) == 1:
        # With several candidates, the owner is unknown.
        servers[servers.index(own[0])] = replace(own[0], pids=own[0].pids | group.pids)


def engine_kind(argv: tuple[str, ...]) -> str:
    """Return the kind of engine that a command line serves; empty if none."""
    if not argv:
        return ""
    name = program_name(argv[0])
    if not (_RUNS_AS.fullmatch(name) or _RUNS_AS_NAMED.fullmatch(name)):
        return ""
    parsed = parse_command_line(argv, {})
    return kind_of(parsed.programs) if parsed.has_engine else ""


def kind_of(programs: Sequence[Program]) -> str:
    """Return our word for the engine among some programs."""
    return next((_KINDS[program] for program in programs if program in _KINDS), "engine")


def port_argument(argv: tuple[str, ...], kind: str) -> int | None:
    """Return the port that a command line sets, or the default of its kind of engine."""
    text = read_flags(argv).value("port") or ""
    return port_of(text) if text else _USUAL_PORTS.get(kind)


def _part_of(argv: tuple[str, ...]) -> str:
    found = _PART.match(argv[0]) if argv else None
    return found["kind"].lower() if found else ""


def _owner(
    part: HostProcess, table: Mapping[int, HostProcess], parts: Mapping[int, str]
) -> HostProcess:
    """Return the program that started an engine's parts; the first part if that is a shell."""
    top = part
    for above in ancestors(part.pid, table):
        if above.pid not in parts:
            return above if _RUNS_AS.fullmatch(above.program) else top
        top = above
    return top
