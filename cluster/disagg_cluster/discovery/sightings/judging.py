"""What found engines are for: their markers, pages and traffic weighed together; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.telemetry.known_peer import KnownPeer
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

# Over how long traffic is looked at: long enough for twenty requests, short enough for a change.
TRAFFIC_SECONDS = 60.0
_STEPS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One engine before the judge; `page` are the lines of its metrics page that matter."""

    name: str
    markers: Markers = field(repr=False)
    page: tuple[str, ...] = field(default=(), repr=False)
    model_name: str = ""
    role: Role | None = None


class Judge:
    """Weighs the markers of all engines; remembers how much each had served, for its traffic."""

    def __init__(self) -> None:
        self._past: dict[str, list[tuple[float, Traffic]]] = {}
        self._switching: dict[str, SwitchingRole] = {}

    def judge(
        self, cases: Sequence[Case], peers: Iterable[KnownPeer], now_seconds: float
    ) -> Mapping[str, Verdict]:
        """Say what each engine is for; first each by itself, then beside the others.

        Args:
            cases: All engines found; of those that are not among them nothing is remembered.
            peers: Engines of this node that were launched.
            now_seconds: Now, on any clock that only goes forward.
        """
        names = {case.name for case in cases}
        for remembered in (self._past, self._switching):
            for gone in remembered.keys() - names:
                del remembered[gone]
        whole = {case.name: self._with_traffic(case, now_seconds) for case in cases}
        alone = {case.name: _verdict(case, whole[case.name]) for case in cases}
        for case in cases:
            if alone[case.name].switches:
                whole[case.name] = self._as_it_switches(case, now_seconds)
                alone[case.name] = _verdict(case, whole[case.name])
            else:
                self._switching.pop(case.name, None)
        sides = [("", peer.model_name, peer.role) for peer in peers]
        sides += [
            (case.name, case.model_name, alone[case.name].role)
            for case in cases
            if alone[case.name].confidence.rank >= Confidence.MEDIUM.rank
        ]
        beside = {case.name: _peers(case, sides) for case in cases}
        return {
            name: _verdict(case, replace(whole[name], peers=beside[name]))
            if beside[name] != Peers()
            else alone[name]
            for name, case in ((case.name, case) for case in cases)
        }

    def _with_traffic(self, case: Case, now_seconds: float) -> Markers:
        markers = replace(case.markers, page=case.page)
        total = page_claims(case.page)[1]
        if total is None:
            self._past.pop(case.name, None)
            return markers
        past = self._past.setdefault(case.name, [])
        if past and total.fell_below(past[-1][1]):
            past.clear()
        while len(past) > 1 and now_seconds - past[1][0] >= TRAFFIC_SECONDS:
            past.pop(0)
        recent = total.since(past[0][1]) if past else None
        if not past or now_seconds - past[-1][0] >= TRAFFIC_SECONDS / _STEPS:
            past.append((now_seconds, total))
        # Too little of late says nothing; then all since the engine's start counts.
        return replace(markers, traffic=recent) if recent and _enough(recent) else markers

    def _as_it_switches(self, case: Case, now_seconds: float) -> Markers:
        """Its markers with the traffic that told its role last, of which little has to be left."""
        switching = self._switching.setdefault(case.name, SwitchingRole())
        total = page_claims(case.page)[1]
        told_by = switching.told_by if total is None else switching.take(total, now_seconds)
        return replace(case.markers, page=case.page, traffic=told_by or Traffic())


def _verdict(case: Case, markers: Markers) -> Verdict:
    if case.role is not None:
        return Verdict(case.role, "config", Confidence.CERTAIN)
    return explain(markers)


def _peers(case: Case, sides: Sequence[tuple[str, str, Role]]) -> Peers:
    """Which other engines of its model are known; nobody is its own peer."""
    roles = {
        role
        for name, model_name, role in sides
        if name != case.name and model_name and model_name == case.model_name
    }
    return Peers(prefill=Role.PREFILL in roles, decode=Role.DECODE in roles)


def _enough(traffic: Traffic) -> bool:
    told = traffic_claim(traffic)
    return told is not None and told.kind is ClaimKind.TRAFFIC
