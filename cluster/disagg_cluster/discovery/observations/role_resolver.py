"""Determines the roles of found engines from their markers, pages and traffic together; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.telemetry.engine_registry import KnownPeer
from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.page import page_claims
from disagg_exporter.roles.evidence.traffic import SwitchingRole, traffic_claim
from disagg_exporter.roles.evidence.types import (
    ClaimKind,
    Confidence,
    Markers,
    Peers,
    Traffic,
    Verdict,
)
from disagg_exporter.roles.judge import explain

# Window of traffic: long enough for twenty requests, short enough to follow a change.
TRAFFIC_SECONDS = 60.0
_STEPS = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine to be judged; `page` are the relevant lines of its metrics page."""

    name: str
    markers: Markers = field(repr=False)
    page: tuple[str, ...] = field(default=(), repr=False)
    model_name: str = ""
    role: Role | None = None


class RoleResolver:
    """Weighs the markers of all engines; remembers how much each had served, for its traffic."""

    def __init__(self) -> None:
        self._past: dict[str, list[tuple[float, Traffic]]] = {}
        self._switching: dict[str, SwitchingRole] = {}

    def resolve(
        self, candidates: Sequence[Candidate], peers: Iterable[KnownPeer], now_seconds: float
    ) -> Mapping[str, Verdict]:
        """Return each engine's verdict; first each alone, then together with its peers.

        Args:
            candidates: All engines found; state of others is dropped.
            peers: Engines of this node that were launched.
            now_seconds: Now, on any clock that only goes forward.
        """
        names = {candidate.name for candidate in candidates}
        for remembered in (self._past, self._switching):
            for gone in remembered.keys() - names:
                del remembered[gone]
        whole = {
            candidate.name: self._with_traffic(candidate, now_seconds) for candidate in candidates
        }
        alone = {
            candidate.name: _verdict(candidate, whole[candidate.name]) for candidate in candidates
        }
        for candidate in candidates:
            if alone[candidate.name].switches:
                whole[candidate.name] = self._as_it_switches(candidate, now_seconds)
                alone[candidate.name] = _verdict(candidate, whole[candidate.name])
            else:
                self._switching.pop(candidate.name, None)
        sides = [("", peer.model_name, peer.role) for peer in peers]
        sides += [
            (candidate.name, candidate.model_name, alone[candidate.name].role)
            for candidate in candidates
            if alone[candidate.name].confidence.rank >= Confidence.MEDIUM.rank
        ]
        beside = {candidate.name: _peers(candidate, sides) for candidate in candidates}
        return {
            name: _verdict(candidate, replace(whole[name], peers=beside[name]))
            if beside[name] != Peers()
            else alone[name]
            for name, candidate in ((candidate.name, candidate) for candidate in candidates)
        }

    def _with_traffic(self, candidate: Candidate, now_seconds: float) -> Markers:
        markers = replace(candidate.markers, page=candidate.page)
        total = page_claims(candidate.page)[1]
        if total is None:
            self._past.pop(candidate.name, None)
            return markers
        past = self._past.setdefault(candidate.name, [])
        if past and total.fell_below(past[-1][1]):
            past.clear()
        while len(past) > 1 and now_seconds - past[1][0] >= TRAFFIC_SECONDS:
            past.pop(0)
        recent = total.since(past[0][1]) if past else None
        if not past or now_seconds - past[-1][0] >= TRAFFIC_SECONDS / _STEPS:
            past.append((now_seconds, total))
        # If there was too little recently, all since the engine's start counts.
        return replace(markers, traffic=recent) if recent and _enough(recent) else markers

    def _as_it_switches(self, candidate: Candidate, now_seconds: float) -> Markers:
        """Return its markers with the traffic that last showed its role, which may be long ago."""
        switching = self._switching.setdefault(candidate.name, SwitchingRole())
        total = page_claims(candidate.page)[1]
        traffic = switching.traffic_seen if total is None else switching.ingest(total, now_seconds)
        return replace(candidate.markers, page=candidate.page, traffic=traffic or Traffic())


def _verdict(candidate: Candidate, markers: Markers) -> Verdict:
    if candidate.role is not None:
        return Verdict(candidate.role, "config", Confidence.CERTAIN)
    return explain(markers)


def _peers(candidate: Candidate, sides: Sequence[tuple[str, str, Role]]) -> Peers:
    """Return which other engines of its model are known; an engine is not its own peer."""
    roles = {
        role
        for name, model_name, role in sides
        if name != candidate.name and model_name and model_name == candidate.model_name
    }
    return Peers(prefill=Role.PREFILL in roles, decode=Role.DECODE in roles)


def _enough(traffic: Traffic) -> bool:
    claim = traffic_claim(traffic)
    return claim is not None and claim.kind is ClaimKind.TRAFFIC
