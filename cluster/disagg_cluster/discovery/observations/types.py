"""Observations of finders, the engines they form, and the engines' names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2s

from disagg_cluster.config import EngineTls
from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.types import Markers

MAX_ENGINES = 64
"""Most engines per node; further ones are left out and counted."""


class Finder(StrEnum):
    """Finders of engines, in order of precedence."""

    LISTED = "listed"
    PODS = "pods"
    PROCESSES = "processes"
    DYNAMO = "dynamo"

    @property
    def order(self) -> int:
        """Precedence; 0 is the highest."""
        return list(Finder).index(self)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Address where something listens, as this node reaches it; with `tls` it speaks TLS."""

    host: str
    port: int
    tls: bool = field(default=False, compare=False)

    @property
    def url(self) -> str:
        """The root URL of a server there."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def port_of(text: str) -> int | None:
    """Return the TCP port that a text names; None if it names none, however long it is."""
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
    """Dynamo's own discovery data of an engine: that it is registered, and as which worker.

    `worker` is the id in hex, as pages have it; the frontend has the same in decimal.
    """

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What is known of one engine on this node; every part may be missing.

    `kind` is one of `pages.KINDS`, `engine` for another kind, or empty. `endpoints` are where its
    metrics page may be, the likeliest first. `pids` are its processes, including the leader. `gpus`
    are UUIDs; None where they are unknown. `role` is only set where a person configured it.
    `markers` hold raw arguments and are never shown. `part` is set where it is one of several
    nodes' parts of an engine. `certificate_file` is the configured certificate of an engine that
    serves TLS, `tls` the TLS setting of a person for it.
    """

    kind: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    leader: Leader | None = None
    pids: frozenset[int] = frozenset()
    gpus: tuple[str, ...] | None = None
    markers: Markers = field(default=Markers(), repr=False)
    name: str = ""
    role: Role | None = None
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""
    draining: bool = False
    claimed: Claimed | None = None
    part: EnginePart | None = None
    certificate_file: str | None = None
    tls: EngineTls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(EngineFacts):
    """What one finder observed of one engine; other finders may know the rest.

    `also_at` are further addresses where it listens, without a page. `name` is only set where a
    person configured it.
    """

    finder: Finder
    sure: bool = True
    also_at: tuple[Endpoint, ...] = ()
    port_argument: int | None = None
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEngine(EngineFacts):
    """An engine on this node that we did not start, merged from all finders.

    `keys` recognise it when it returns: after a restart on the same port it is the same engine,
    with another `leader`. `name` is its unique name, given by `EngineNames` after `proposed_name`.
    `seen_by` are the finders that observed it. A follower of an engine that spans nodes is a
    separate engine here.
    """

    keys: tuple[str, ...]
    proposed_name: str
    seen_by: tuple[Finder, ...]

    @property
    def follows(self) -> bool:
        """Whether its leader is elsewhere: it has no page of its own and reports no steps."""
        return self.part is not None and self.part.follows

    def leads(self, other: FoundEngine) -> bool:
        """Return whether another engine is a follower of this one."""
        return self.part is not None and other.part is not None and self.part.leads(other.part)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one finder observed in one scan; `lost` says what could not be observed and why.

    `failed`: it could observe nothing at all, so what it observed before may still be there.
    """

    observations: tuple[Observation, ...] = ()
    lost: str = ""
    failed: bool = False


MAX_NAME = 63
MAX_REMEMBERED = 1024

_ODD = re.compile(r"[^a-z0-9]+")


def clean_name(proposed_name: str) -> str:
    """Return a name of a-z, 0-9 and -, at most 63 long; cut names stay different by a digest."""
    bare = _ODD.sub("-", proposed_name[:4096].lower()).strip("-") or "engine"
    if len(bare) <= MAX_NAME:
        return bare
    digest = blake2s(proposed_name.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{bare[: MAX_NAME - 9].rstrip('-')}-{digest}"


class EngineNames:
    """Gives each engine its name, and a returning one the name that it had.

    Args:
        taken: Names that are never given: those of the workers of the node file.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._reserved = frozenset(taken)
        self._by_key: dict[str, str] = {}

    @property
    def by_key(self) -> Mapping[str, str]:
        """The remembered names, by their engines' recognition keys."""
        return self._by_key

    def reserve(self, name: str) -> None:
        """Never give this name from now on."""
        self._reserved |= {name}

    def resume(self, by_key: Mapping[str, str]) -> None:
        """Remember the names that a previous daemon gave."""
        self._by_key |= {key: name for key, name in by_key.items() if name not in self._reserved}

    def name(self, engines: Sequence[FoundEngine]) -> tuple[FoundEngine, ...]:
        """Return the engines with their names; no two of them have the same."""
        used: dict[str, FoundEngine] = {}
        # Engines that never left keep their names before others return to theirs.
        left = self._recognise(engines, used, surely=True)
        for engine in self._recognise(left, used, surely=False):
            used[self._free(clean_name(engine.proposed_name), used)] = engine
        named = tuple(replace(engine, name=name) for name, engine in used.items())
        for engine in named:
            self._remember(engine)
        return named

    def _recognise(
        self, engines: Sequence[FoundEngine], used: dict[str, FoundEngine], *, surely: bool
    ) -> list[FoundEngine]:
        """Give engines the names that they had; return those that are new."""
        new: list[FoundEngine] = []
        for engine in engines:
            keys = engine.keys[:1] if surely else engine.keys
            known = (self._by_key[key] for key in keys if key in self._by_key)
            name = next((name for name in known if name not in used), None)
            if name is None:
                new.append(engine)
            else:
                used[name] = engine
        return new

    def _free(self, proposed_name: str, used: dict[str, FoundEngine]) -> str:
        # Names of engines that may return stay reserved as long as they are remembered.
        held = self._reserved | used.keys() | set(self._by_key.values())
        number, name = 1, proposed_name
        while name in held:
            number += 1
            name = f"{proposed_name[: MAX_NAME - 6]}-{number}"
        return name

    def _remember(self, engine: FoundEngine) -> None:
        for key in engine.keys:
            self._by_key.pop(key, None)
            self._by_key[key] = engine.name
        while len(self._by_key) > MAX_REMEMBERED:
            self._by_key.pop(next(iter(self._by_key)))
