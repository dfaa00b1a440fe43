"""The processes of this host that may be engines or belong to one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from disagg_exporter.roles.command_line.shell_words import program_name

# Substrings of engines' command lines; others are not even split.
_MAY_BE = re.compile(
    rb"vllm|sglang|launch_server|api_server|trtllm|tensorrt_llm|dynamo|lmdeploy|llm-d-|triton"
    rb"|rtp_llm|fastdeploy|encode_server|raylet|ray::RayWorker",
    re.IGNORECASE,
)
MAX_COMMAND_BYTES = 128 * 1024
MAX_ENVIRONMENT_BYTES = 1024 * 1024
_MAX_DEPTH = 64

YOUNG_SCANS = 30
OLD_SCANS = 16


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process and the file name of its program; `argv` is empty if it cannot be an engine's.

    `session` is the pid of its session's leader, which may be gone; so may `parent`, and its pid
    may have been reused: see `is_child`.
    """

    pid: int
    parent: int
    start_ticks: int
    program: str = ""
    argv: tuple[str, ...] = field(default=(), repr=False)
    session: int = 0


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """A process of earlier scans: the inode of its folder, the first scan that found it.

    The kernel creates a folder for each process, with its own inode number: another number may mean
    another process. So most of thousands of processes are recognised without opening any file.
    """

    folder: int
    first: int
    process: HostProcess | None


class ProcessTable:
    """Every process that has a command line, scanned repeatedly at little cost.

    The command of a process hardly changes once it is some scans old. So an old one that is no
    engine's is read again only at every `OLD_SCANS`th scan, a share of them at each: a shell that
    becomes an engine after a minute (`exec vllm serve`) is found that much later.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._scans = 0
        self._known: dict[int, _KnownProcess] = {}

    def read(self) -> dict[int, HostProcess]:
        """Return the current processes, by pid.

        Raises:
            OSError: There is no such folder, or we may not list it.
        """
        self._scans += 1
        with os.scandir(self._proc) as entries:
            folders = {int(e.name): e.inode() for e in entries if e.name.isdigit()}
        self._known = {pid: self._recognise(pid, folder) for pid, folder in folders.items()}
        return {pid: k.process for pid, k in self._known.items() if k.process is not None}

    def _recognise(self, pid: int, folder: int) -> _KnownProcess:
        known = self._known.get(pid)
        if known is not None and known.folder == folder and not self._is_due(pid, known):
            return known
        process = _read(self._proc, pid)
        # Pids are reused. But the kernel also recreates folders after reclaiming memory.
        same = known is not None and _started(known.process) == _started(process)
        return _KnownProcess(folder, known.first if known and same else self._scans, process)

    def _is_due(self, pid: int, known: _KnownProcess) -> bool:
        engine = known.process is not None and bool(known.process.argv)
        if self._scans - known.first < YOUNG_SCANS or engine:
            return True
        return (self._scans + pid) % OLD_SCANS == 0


def _started(process: HostProcess | None) -> int | None:
    return None if process is None else process.start_ticks


def _read(proc: Path, pid: int) -> HostProcess | None:
    raw = read_bytes(f"{proc}/{pid}/cmdline", MAX_COMMAND_BYTES)
    if not raw:
        return None
    # The second field is the command in brackets and may itself contain spaces and brackets.
    fields = read_bytes(f"{proc}/{pid}/stat", 4096).rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    argv = _words(raw) if _MAY_BE.search(raw) else ()
    program = program_name(os.fsdecode(raw[:4096].partition(b"\0")[0]))
    return HostProcess(pid, int(fields[1]), int(fields[19]), program, argv, int(fields[3]))


def environment(pid: int, wanted: Iterable[str], proc: Path = Path("/proc")) -> dict[str, str]:
    """Return the wanted variables of a process; others are not kept. Empty if not permitted."""
    names = {name.encode() for name in wanted}
    raw = read_bytes(f"{proc}/{pid}/environ", MAX_ENVIRONMENT_BYTES)
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {
        os.fsdecode(name): value.decode(errors="replace")[:32768]
        for name, _, value in pairs
        if name in names
    }


def is_child(process: HostProcess, parent: HostProcess) -> bool:
    """Return whether one is the child of the other; no child is older than its parent.

    Data of an earlier scan may name a parent that is gone since, and whose pid another process has
    now.
    """
    return process.parent == parent.pid and parent.start_ticks <= process.start_ticks


def below(roots: Iterable[int], parents: Mapping[int, int]) -> frozenset[int]:
    """Return all descendants of some processes, without these; `parents` is by pid."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        fresh = set(children.get(waiting.pop(), ())) - found
        found |= fresh
        waiting.extend(fresh)
    return frozenset(found)


def descendants(roots: Iterable[int], table: Mapping[int, HostProcess]) -> frozenset[int]:
    """Return these processes and all their descendants."""
    roots = frozenset(roots)
    above = {
        pid: process.parent
        for pid, process in table.items()
        if (parent := table.get(process.parent)) is None or is_child(process, parent)
    }
    return roots | below(roots, above)


def ancestors(pid: int, table: Mapping[int, HostProcess]) -> Iterator[HostProcess]:
    """Yield the parent of a process, its parent, and so on, as far as they are in the table."""
    seen = {pid}
    process = table.get(pid)
    while process is not None and process.parent not in seen:
        seen.add(process.parent)
        above = table.get(process.parent)
        if above is None or not is_child(process, above):
            return
        yield above
        process = above


def parents(pid: int) -> tuple[int, ...]:
    """Return the parent of a process, its parent, and so on, as they are now."""
    found: list[int] = []
    while pid > 1 and len(found) < _MAX_DEPTH:
        fields = read_bytes(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
        if len(fields) < 2:
            break
        pid = int(fields[1])
        found.append(pid)
    return tuple(found)


def read_bytes(path: str, most: int) -> bytes:
    """Return the beginning of a file; nothing if it is gone or not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts, room = [], most
        while room > 0 and (part := os.read(descriptor, min(room, 65536))):
            parts.append(part)
            room -= len(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _words(raw: bytes) -> tuple[str, ...]:
    # A title that a process gave itself is padded with zeros.
    return tuple(os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0"))
