"""What proves that a process is a worker's although no journal says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sought:
    """A worker as it can be recognised: its log, arguments and address, and when it can have begun.

    Without arguments, these prove nothing; with port 0, no port does.
    """

    log_path: Path
    argv: tuple[str, ...]
    host: str
    port: int
    since_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What can be seen of a session leader of our own user, beside what a worker should be.

    `writes_log`: its standard output is the worker's log, deleted or moved perhaps. `argv_fits`: it
    was started with the worker's arguments. `bears_mark`: it inherited the worker's environment.
    `holds_port`: its session listens on the worker's port.
    """

    writes_log: bool
    argv_fits: bool
    bears_mark: bool
    holds_port: bool


def proves_worker(traits: Traits) -> bool:
    """Whether these traits together are a worker's and nobody else's.

    The log alone is not: a person may append to it. Without it (the disk was full, the folder has
    another name now) arguments and mark are wanted: somebody may have started the same by hand,
    and one of ours may be long in loading before it listens. A title that an engine gives itself
    overwrites both.
    """
    if traits.writes_log:
        return traits.argv_fits or traits.bears_mark or traits.holds_port
    return traits.argv_fits and traits.bears_mark
