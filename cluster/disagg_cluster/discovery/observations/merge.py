"""Merges observations of several finders into engines; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.discovery.observations.types import Endpoint, Finder, FoundEngine, Observation
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.types import Markers

_Token = tuple[str, ...]
_Tokens = Callable[[Observation], Iterator[_Token]]


def merge_observations(observations: Iterable[Observation]) -> tuple[FoundEngine, ...]:
    """Group the observations by engine; the engines have no names yet.

    Two observations are of one engine if they share a process or a pod's container, or a listening
    address. An address alone never joins two pods, two servers or two endpoints that a person
    listed: any program may claim an address.
    """
    groups = [
        _Group([seen])
        for seen in sorted(
            observations, key=lambda s: (s.finder.order, s.name, s.pod, _sort_key(s))
        )
    ]
    for tokens_of in (_identities, _addresses):
        groups = _merge(groups, tokens_of)
    engines = [_engine(g.seen) for g in groups if any(seen.sure for seen in g.seen)]
    return tuple(_without_leaders_gpus(engine, engines) for engine in engines)


def _without_leaders_gpus(engine: FoundEngine, engines: Iterable[FoundEngine]) -> FoundEngine:
    """Return a follower without the GPUs of its leader on this node: no step counts twice."""
    if not engine.follows or not engine.gpus:
        return engine
    leaders = (other for other in engines if other.leads(engine))
    taken = {gpu for leader in leaders for gpu in leader.gpus or ()}
    return replace(engine, gpus=tuple(gpu for gpu in engine.gpus if gpu not in taken))


@dataclass(slots=True)
class _Group:
    """Observations of one engine, in order of precedence."""

    seen: list[Observation]

    def contradicts(self, other: _Group) -> bool:
        """Return whether both have the same kind of identity with different values."""
        pairs = zip(self._identities(), other._identities(), strict=True)
        return any(mine and theirs and not mine & theirs for mine, theirs in pairs)

    def _identities(self) -> tuple[set[object], ...]:
        return (
            {s.leader for s in self.seen if s.leader},
            {s.pod_uid for s in self.seen if s.pod_uid},
            {s.container for s in self.seen if s.container},
            {s.endpoints[:1] for s in self.seen if s.finder is Finder.LISTED},
            {s.claimed for s in self.seen if s.claimed},
        )


def _merge(groups: Sequence[_Group], tokens_of: _Tokens) -> list[_Group]:
    merged: list[_Group] = []
    homes: dict[_Token, _Group] = {}
    for group in groups:
        tokens = [token for seen in group.seen for token in tokens_of(seen)]
        known = (homes[token] for token in tokens if token in homes)
        home = next((home for home in known if not home.contradicts(group)), None)
        if home is None:
            home = group
            merged.append(home)
        else:
            home.seen.extend(group.seen)
        for token in tokens:
            homes.setdefault(token, home)
    return merged


def _identities(seen: Observation) -> Iterator[_Token]:
    for pid in seen.pids:
        yield "pid", str(pid)
    if seen.pod_uid:
        yield "pod", seen.pod_uid, seen.container


def _addresses(seen: Observation) -> Iterator[_Token]:
    for endpoint in (*seen.endpoints, *seen.also_at):
        yield "at", str(endpoint)


def _sort_key(seen: Observation) -> tuple[object, ...]:
    leader = (seen.leader.pid, seen.leader.start_ticks) if seen.leader else (0, 0)
    return (*leader, *(str(endpoint) for endpoint in seen.endpoints))


def _engine(seen: Sequence[Observation]) -> FoundEngine:
    """Return the merged observations; of two answers the better finder's counts."""
    first = sorted(seen, key=lambda s: s.finder.order)
    pod = next((s for s in first if s.pod), None)
    part = _part(first)
    # What a follower's pod declares belongs to its leader.
    candidates = [s for s in first if not (part and part.follows and s.finder is Finder.PODS)]
    return FoundEngine(
        keys=tuple(dict.fromkeys(key for s in first for key in _keys(s))),
        proposed_name=next(filter(None, map(_proposed_name, first)), "engine"),
        kind=_kind(first),
        seen_by=tuple(dict.fromkeys(s.finder for s in first)),
        endpoints=_endpoints(candidates),
        leader=next((s.leader for s in first if s.leader), None),
        pids=frozenset().union(*(s.pids for s in first)),
        gpus=_gpus(first),
        markers=_markers(first),
        role=next((s.role for s in first if s.role), None),
        pod_uid=next((s.pod_uid for s in first if s.pod_uid), ""),
        pod=pod.pod if pod else "",
        namespace=pod.namespace if pod else "",
        draining=any(s.draining for s in first),
        claimed=next((s.claimed for s in first if s.claimed), None),
        part=part,
        certificate_file=_certificate_file(first),
        tls=next((s.tls for s in first if s.tls), None),
    )


def _endpoints(candidates: Sequence[Observation]) -> tuple[Endpoint, ...]:
    """Return where its page may be; TLS counts if any observation says so."""
    known = [e for s in sorted(candidates, key=_nearness) for e in s.endpoints]
    secure = {endpoint for endpoint in known if endpoint.tls}
    return tuple(replace(e, tls=e in secure) for e in dict.fromkeys(known))


def _certificate_file(first: Sequence[Observation]) -> str | None:
    """Return the file by its path in the file system of the process."""
    files = (s.certificate_file for s in sorted(first, key=_nearness))
    return next(filter(None, files), None)


def _keys(seen: Observation) -> Iterator[str]:
    """Yield the keys by which an engine is recognised later, the surest first.

    Never a pid alone, which is reused. The configured port is one, because the engine does not
    listen there before it is ready.
    """
    if seen.finder is Finder.LISTED:
        yield f"listed {seen.name} {seen.endpoints[0]}"
    if seen.pod:
        yield f"pod {seen.namespace}/{seen.pod}/{seen.container}"
    if seen.leader is not None:
        yield f"process {seen.leader.pid} {seen.leader.start_ticks}"
    if seen.claimed is not None:
        yield f"dynamo {seen.claimed.worker}"
    if seen.part is not None and seen.part.follows:
        yield f"follower {seen.kind} {seen.part.head} {seen.part.rank}"
    elif seen.port_argument is not None:
        yield f"port {seen.port_argument} {seen.kind}"


def _proposed_name(seen: Observation) -> str:
    if seen.name:
        return seen.name
    if seen.pod:
        return f"{seen.pod}-{seen.container}" if seen.container else seen.pod
    if seen.part is not None and seen.part.follows:
        number = "" if seen.part.rank is None else f"-{seen.part.rank}"
        return f"{seen.kind}-follower{number}"
    port = seen.endpoints[0].port if seen.endpoints else seen.port_argument
    if port is None and seen.leader is not None:
        port = seen.leader.pid
    return "" if port is None else f"{seen.kind or 'engine'}-{port}"


def _nearness(seen: Observation) -> int:
    """Return how direct a finder's addresses and devices are: running beats declared."""
    return (Finder.LISTED, Finder.PROCESSES, Finder.PODS, Finder.DYNAMO).index(seen.finder)


def _kind(first: Sequence[Observation]) -> str:
    """Return its kind, preferring the running process: how its page is scraped depends on it.

    A TensorRT-LLM whose address was listed without its kind must not be scraped like a vLLM.
    """
    known = [s for s in first if s.kind not in ("", "engine")]
    running = [s for s in known if s.finder is Finder.PROCESSES]
    return next((s.kind for s in (*running, *known, *first) if s.kind), "")


def _gpus(first: Sequence[Observation]) -> tuple[str, ...] | None:
    """Return its devices: those a person listed, else the driver's, else those allocated."""
    known = sorted((s for s in first if s.gpus), key=_nearness)
    if known:
        return known[0].gpus
    return () if any(s.gpus is not None for s in first) else None


def _part(first: Sequence[Observation]) -> EnginePart | None:
    """Return which part it is by its own arguments: a pod's may be a script that starts either."""
    return next((s.part for s in _by_arguments(first)), None)


def _by_arguments(first: Sequence[Observation]) -> Iterator[Observation]:
    """Yield those with arguments, a process's own before those its pod declares."""
    running = (s for s in first if s.finder is Finder.PROCESSES)
    yield from (s for s in (*running, *first) if s.markers.argv)


def _markers(first: Sequence[Observation]) -> Markers:
    """Return all markers; the arguments are those of the process itself where they are known."""
    argv = next((s.markers.argv for s in _by_arguments(first)), ())
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    for seen in reversed(first):
        env |= seen.markers.env
        labels |= seen.markers.labels
    name = next((s.markers.name for s in first if s.markers.name), "")
    return Markers(argv=argv, env=env, labels=labels, name=name)
