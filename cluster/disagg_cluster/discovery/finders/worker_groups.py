"""Processes of an engine that its server did not start: MPI's ranks and Ray's workers; pure.

TensorRT-LLM's `trtllm-llmapi-launch` runs one rank a GPU: the server beside rank 0, and on every
node processes that wait for its work. vLLM's workers under Ray are children of that node's raylet.
Where the server is on this node they are its own; elsewhere they follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from disagg_cluster.host.processes.process_table import HostProcess, ancestors, descendants
from disagg_exporter.roles.command_line.flags import read_flags
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.command_line.spanning import is_place

_RANK = re.compile(r"tensorrt_llm\.llmapi\.mgmn_(leader|worker)_node")
_LAUNCHER = "trtllm-llmapi-launch"
_RAY_WORKER = re.compile(r"ray::RayWorker(Wrapper|Proc)\b|VLLM::Worker")
_RAYLET = "raylet"


@dataclass(frozen=True, slots=True)
class Gang:
    """What one program has started here for one engine: `starter` is its pid.

    `command` is what they serve, empty if nobody says it. `head` is where the nodes meet, empty
    likewise.
    """

    process: HostProcess
    kind: str
    starter: int
    pids: frozenset[int]
    command: tuple[str, ...] = ()
    head: str = ""


def find_gangs(table: Mapping[int, HostProcess]) -> tuple[Gang, ...]:
    """The gangs among the processes of a node."""
    found: dict[tuple[str, int], list[HostProcess]] = {}
    for process in table.values():
        if process.argv and any(map(_RANK.fullmatch, process.argv[1:4])):
            found.setdefault(("trtllm", starter_of(process, table)), []).append(process)
        elif process.argv and _RAY_WORKER.match(process.argv[0]):
            # Its own child: below a replica of Ray Serve there are workers of that replica.
            above = table.get(process.parent)
            if above is not None and above.program == _RAYLET:
                found.setdefault(("vllm", above.pid), []).append(process)
    return tuple(_gang(*key, members, table) for key, members in sorted(found.items()))


def starter_of(process: HostProcess, table: Mapping[int, HostProcess]) -> int:
    """The program that started a rank and its siblings: above the script that wraps each."""
    top = process
    for above in ancestors(process.pid, table):
        if not _wraps(above):
            break
        top = above
    return top.parent


def is_wrapped(process: HostProcess, table: Mapping[int, HostProcess]) -> bool:
    """Whether a server was started for ranks that others wait in."""
    return any(map(_wraps, ancestors(process.pid, table)))


def is_for_ray(process: HostProcess) -> bool:
    """Whether a server was told to have its workers started by Ray."""
    flags = read_flags(process.argv)
    return flags.value("distributed-executor-backend") == "ray" or flags.has("worker-use-ray")


def _gang(
    kind: str, starter: int, members: list[HostProcess], table: Mapping[int, HostProcess]
) -> Gang:
    first = min(members, key=lambda process: process.pid)
    pids = descendants((process.pid for process in members), table)
    if kind == "vllm":
        told = read_flags(table[starter].argv).value("gcs-address") or ""
        return Gang(first, kind, starter, pids, head=told if is_place(told) else "")
    return Gang(first, kind, starter, pids, next(_commands(first, table), ()))


def _commands(rank: HostProcess, table: Mapping[int, HostProcess]) -> Iterator[tuple[str, ...]]:
    """What the script around a rank was given to run."""
    for above in ancestors(rank.pid, table):
        for at, word in enumerate(above.argv[:4]):
            if program_name(word) == _LAUNCHER:
                yield above.argv[at + 1 :]


def _wraps(process: HostProcess) -> bool:
    return any(program_name(word) == _LAUNCHER for word in process.argv[:4])
