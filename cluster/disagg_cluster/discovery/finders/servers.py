"""Which of a host's processes are engines' servers; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.discovery.finders.worker_groups import (
    Gang,
    find_gangs,
    is_for_ray,
    is_wrapped,
    starter_of,
)
from disagg_cluster.discovery.sightings.types import port_of
from disagg_cluster.host.processes.process_table import HostProcess, ancestors, descendants
from disagg_exporter.roles.command_line.flags import read_flags
from disagg_exporter.roles.command_line.programs import Program
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.command_line import parse_command_line

# What an engine runs as. Wrappers, clients (`docker run … vllm serve`) and people's tools
# (`grep vllm`) name an engine, too, and are none; those that matter have the engine as a child.
_RUNS_AS = re.compile(r"(python|pypy)[\d.]*t?|vllm|sglang|trtllm-serve|lmdeploy|tritonserver")
_RUNS_AS_NAMED = re.compile(r"llm-d-inference-sim[\w.-]*")
# The parts of an engine name themselves so where they can (setproctitle).
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
class Server:
    """An engine's server process, and all processes of the engine.

    Of a gang whose server is elsewhere `process` is one of its ranks, and `part` says so.
    """

    process: HostProcess
    kind: str
    pids: frozenset[int]
    part: EnginePart | None = None


class Parts:
    """Which part of an engine each server is; a command line is read once as long as it is seen."""

    def __init__(self) -> None:
        self._now: dict[object, EnginePart | None] = {}
        self._before: dict[object, EnginePart | None] = {}

    def begin(self) -> None:
        """Begin a look; what the last one did not ask for is forgotten."""
        self._before, self._now = self._now, {}

    def of(self, server: Server, environment: Mapping[str, str]) -> EnginePart | None:
        """The part that a server is, by its arguments and variables."""
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


def find_servers(table: Mapping[int, HostProcess]) -> tuple[Server, ...]:
    """The engines' servers among the processes.

    A server that forked has children with its own command line: they are parts of it. A wrapper
    has a child with another one, which then is the server. Ranks that MPI or Ray started are their
    server's, or make a follower where it is elsewhere.
    """
    gangs = find_gangs(table)
    ganged = frozenset[int]().union(*(gang.pids for gang in gangs))
    kinds = {pid: kind for pid, p in table.items() if (kind := engine_kind(p.argv))}
    parts = {
        pid: kind for pid, p in table.items() if pid not in ganged and (kind := _part_of(p.argv))
    }
    for pid, kind in parts.items():
        owner = _owner(table[pid], table, parts)
        if not any(above.pid in kinds for above in (owner, *ancestors(owner.pid, table))):
            # Started by a program that we do not know: what it runs still is an engine.
            kinds[owner.pid] = kind
    wrappers, folded = set(), set()
    for pid in kinds:
        above = next((p for p in ancestors(pid, table) if p.pid in kinds), None)
        if above is not None and above.argv == table[pid].argv:
            folded.add(pid)
        elif above is not None:
            wrappers.add(above.pid)
    leaders = kinds.keys() - wrappers - folded
    servers = [Server(table[pid], kinds[pid], descendants([pid], table)) for pid in sorted(leaders)]
    for gang in gangs:
        _join(gang, servers, table)
    return tuple(servers)


def _join(gang: Gang, servers: list[Server], table: Mapping[int, HostProcess]) -> None:
    """Give a gang to its server here, or make it a follower."""
    if gang.kind == "trtllm":
        own = [
            s
            for s in servers
            if is_wrapped(s.process, table) and starter_of(s.process, table) == gang.starter
        ]
    else:
        own = [s for s in servers if is_for_ray(s.process)]
    if not own:
        process = replace(gang.process, argv=gang.command or gang.process.argv)
        kind = engine_kind(gang.command) or gang.kind
        servers.append(Server(process, kind, gang.pids, EnginePart(gang.head, None, follows=True)))
    elif len(own) == 1:
        # Of several nobody tells whose they are.
        servers[servers.index(own[0])] = replace(own[0], pids=own[0].pids | gang.pids)


def engine_kind(argv: tuple[str, ...]) -> str:
    """Which kind of engine a command line serves; empty if none."""
    if not argv:
        return ""
    name = program_name(argv[0])
    if not (_RUNS_AS.fullmatch(name) or _RUNS_AS_NAMED.fullmatch(name)):
        return ""
    told = parse_command_line(argv, {})
    if not told.has_engine:
        return ""
    return kind_of(told.programs)


def kind_of(programs: Sequence[Program]) -> str:
    """Our word for the engine among some programs."""
    return next((_KINDS[program] for program in programs if program in _KINDS), "engine")


def told_port(argv: tuple[str, ...], kind: str) -> int | None:
    """The port that a command line asks for, or the usual one of its kind of engine."""
    text = read_flags(argv).value("port") or ""
    return port_of(text) if text else _USUAL_PORTS.get(kind)


def _part_of(argv: tuple[str, ...]) -> str:
    found = _PART.match(argv[0]) if argv else None
    return found["kind"].lower() if found else ""


def _owner(
    part: HostProcess, table: Mapping[int, HostProcess], parts: Mapping[int, str]
) -> HostProcess:
    """The program that started an engine's parts; the first part where that is a shell or so."""
    top = part
    for above in ancestors(part.pid, table):
        if above.pid not in parts:
            return above if _RUNS_AS.fullmatch(above.program) else top
        top = above
    return top
