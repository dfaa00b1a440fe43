"""The nouns of discovery: what a finder sees, and the engine that several sightings make."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from disagg_cluster.config import EngineTls
from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.types import Markers

MAX_ENGINES = 64
"""No node serves more; what is beyond is left out and told."""


class Finder(StrEnum):
    """Who saw an engine, in the order in which they are believed."""

    LISTED = "listed"
    PODS = "pods"
    PROCESSES = "processes"
    DYNAMO = "dynamo"

    @property
    def order(self) -> int:
        """0 is believed first."""
        return list(Finder).index(self)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where something listens, as this node reaches it; with `tls` it speaks TLS there."""

    host: str
    port: int
    tls: bool = field(default=False, compare=False)

    @property
    def url(self) -> str:
        """The root of a server there."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def port_of(text: str) -> int | None:
    """The TCP port that a text names; None if it names none, however long it is."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    return int(text) if 0 < int(text) < 65536 else None


@dataclass(frozen=True, slots=True, order=True)
class Leader:
    """The server process of an engine; a pid is only trusted together with its start time."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """What Dynamo's own discovery says of an engine: that it is registered, and as which worker.

    `worker` is the id in hex, as pages have it; the frontend has the same in decimal.
    """

    worker: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one finder saw of one engine; every part may be missing.

    `kind` is one of `pages.KINDS`, `engine` for another kind, or empty.
    `endpoints` are where its metrics page may be, the likeliest first; `also_at` where it listens,
    too, without a page. `pids` are its processes, the leader's included. `gpus` are UUIDs; None
    where the finder cannot tell, and then another may. `role` and `name` are only set where a
    person said them. `markers` hold raw arguments and are never shown. `part` is set where it is
    one of several nodes' parts of an engine. `certificate_file` is where an engine that serves TLS
    was told to find its certificate, `tls` what a person said of that.
    """

    finder: Finder
    sure: bool = True
    kind: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    also_at: tuple[Endpoint, ...] = ()
    leader: Leader | None = None
    pids: frozenset[int] = frozenset()
    gpus: tuple[str, ...] | None = None
    told_port: int | None = None
    markers: Markers = field(default=Markers(), repr=False)
    name: str = ""
    role: Role | None = None
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""
    container: str = ""
    draining: bool = False
    claimed: Claimed | None = None
    part: EnginePart | None = None
    certificate_file: str | None = None
    tls: EngineTls | None = None


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine on this node that we did not start, as all finders together see it.

    `keys` are by what it is recognised when it comes back: after a restart on the same port it is
    the same engine, with another `leader`. `wish` is what it would like to be called; `name` is
    what it is called, once that is settled (`Names`). `seen_by` says who saw it. A follower of an
    engine that spans nodes is an engine of its own here.
    """

    keys: tuple[str, ...]
    wish: str
    kind: str
    seen_by: tuple[Finder, ...]
    name: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    leader: Leader | None = None
    pids: frozenset[int] = frozenset()
    gpus: tuple[str, ...] | None = None
    markers: Markers = field(default=Markers(), repr=False)
    role: Role | None = None
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""
    draining: bool = False
    claimed: Claimed | None = None
    part: EnginePart | None = None
    certificate_file: str | None = None
    tls: EngineTls | None = None

    @property
    def follows(self) -> bool:
        """Whether its leader is elsewhere: it has no page of its own and tells no steps."""
        return self.part is not None and self.part.follows

    def leads(self, other: FoundEngine) -> bool:
        """Whether another engine is a follower of this one."""
        return self.part is not None and other.part is not None and self.part.leads(other.part)


@dataclass(frozen=True, slots=True)
class Look:
    """What one finder saw at one look; `lost` says what could not be seen and why."""

    finder: Finder
    sightings: tuple[Sighting, ...] = ()
    lost: str = ""
    duration_seconds: float = 0.0
