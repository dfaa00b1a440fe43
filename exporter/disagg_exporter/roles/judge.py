"""The verdict on an engine's role: weighs all claims and keeps track of doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.programs import Program
from disagg_exporter.roles.evidence.command_line import parse_command_line
from disagg_exporter.roles.evidence.environment import MODE_NAMES, SWITCH_NAMES, environment_claims
from disagg_exporter.roles.evidence.labels import label_claims
from disagg_exporter.roles.evidence.options import MODE
from disagg_exporter.roles.evidence.page import page_claims
from disagg_exporter.roles.evidence.role_names import name_claims
from disagg_exporter.roles.evidence.traffic import traffic_claim
from disagg_exporter.roles.evidence.types import (
    Claim,
    ClaimedRole,
    ClaimKind,
    Confidence,
    Markers,
    Peers,
    Source,
    Verdict,
    note,
)

_PHASES = (Role.PREFILL, Role.DECODE, Role.ENCODE)
_FETCH = "kv_fetch_by_stage"


def explain(markers: Markers) -> Verdict:
    """Return an engine's role, with confidence and reasons.

    The same markers in another order give the same verdict. Only `DISAGG_NODE_ROLE` or the label
    `disagg-node/role` gives `certain`.
    """
    process = parse_command_line(markers.argv, markers.env)
    claims = list(process.claims)
    mode_given = any(claim.marker == MODE for claim in claims)
    for program, env in process.environments or ((Program.UNKNOWN, markers.env),):
        claims += environment_claims(env, mode_given, program)
    spoken = (*MODE_NAMES, *SWITCH_NAMES)
    if any(claim.kind is ClaimKind.STATED and claim.marker in spoken for claim in claims):
        # The option is absent because the environment sets it.
        claims = [claim for claim in claims if claim.marker != f"no {MODE}"]
    claims += label_claims(markers.labels)
    from_page, totals = page_claims(markers.page)
    claims += from_page
    claims += name_claims("name", markers.name)
    traffic = markers.traffic or totals
    if traffic is not None and (by_traffic := traffic_claim(traffic)):
        claims.append(by_traffic)
    ordered = sorted(set(claims), key=Claim.sort_key)
    return judge(ordered, markers.peers, has_engine=process.has_engine)


Decision = tuple[Claim, Confidence] | None
"""The claim that decides and its confidence; None where the role stays unknown."""


def judge(claims: Sequence[Claim], peers: Peers, *, has_engine: bool) -> Verdict:
    """Weigh claims, which are sorted.

    Args:
        claims: The claims of the markers.
        peers: Which other engines of the model are known.
        has_engine: The command line runs an engine, even if other evidence denies it.
    """
    said = [claim for claim in claims if claim.kind is ClaimKind.STATED]
    program = [c for c in said if c.says is None and c.source is Source.PROGRAM]
    if program and not has_engine:
        # A sidecar carries its pod's labels, so none of them describes the sidecar.
        return _verdict((program[0], program[0].confidence), claims, peers)
    if has_engine:
        said = [claim for claim in said if claim.says is not None]
    if any(claim.switches for claim in claims):
        explicit = [claim for claim in said if claim.source is Source.EXPLICIT]
        if not explicit:
            return _switching(claims, peers)
        return _verdict(_stated(explicit, claims), claims, peers)
    if said:
        return _verdict(_stated(said, claims), claims, peers)
    conditional = _of_kind(claims, ClaimKind.CONDITIONAL)
    if conditional is not None:
        return _verdict(_conditional(conditional, claims, peers), claims, peers)
    return _verdict(_hinted(claims, has_engine=has_engine), claims, peers)


def _stated(said: Sequence[Claim], claims: Sequence[Claim]) -> Decision:
    """Return the first stated phase; dissent lowers its confidence."""
    explicit = [claim for claim in said if claim.source is Source.EXPLICIT]
    strong = [c for c in said if c.confidence.rank >= Confidence.MEDIUM.rank]
    phases = [claim for claim in strong if claim.says in _PHASES]
    first = (explicit or phases or strong or said)[0]
    same = {c.says for c in said if c.source is first.source and c.says in _PHASES}
    if len(same) > 1:
        return None
    agreeing = {c.source for c in said if c.says is first.says}
    sure = max((c.confidence for c in said if c.says is first.says), key=lambda c: c.rank)
    if sure is Confidence.MEDIUM and len(agreeing) > 1:
        sure = Confidence.HIGH
    return first, sure.lowered(_dissent(first.says, claims))


def _switching(claims: Sequence[Claim], peers: Peers) -> Verdict:
    """Judge by traffic; the role at its start, or in its name, may be outdated."""
    traffic = _of_kind(claims, ClaimKind.TRAFFIC)
    if traffic is not None:
        verdict = _verdict((traffic, Confidence.MEDIUM), claims, peers)
        return replace(verdict, switches=True)
    return replace(_verdict(None, claims, peers), source=Source.DYNAMIC.value, switches=True)


def _dissent(says: ClaimedRole, claims: Sequence[Claim]) -> int:
    """Return by how many steps the other markers lower the confidence."""
    others = [c for c in claims if c.says not in (Role.UNKNOWN, says)]
    # A pod may be named after the router or the gateway that it stands behind.
    others = [c for c in others if not (c.says is None and c.kind is ClaimKind.WEAK)]
    if any(
        c.kind is ClaimKind.STATED
        and c.confidence.rank >= Confidence.MEDIUM.rank
        and c.says in _PHASES
        for c in others
    ):
        return 2
    fetches = says is Role.PREFILL and any(_FETCH in claim.marker for claim in claims)
    return 1 if others or fetches else 0


def _conditional(claim: Claim, claims: Sequence[Claim], peers: Peers) -> Decision:
    """Return decode if other evidence supports it; a name from the same template does not."""
    traffic = _of_kind(claims, ClaimKind.TRAFFIC)
    inferred = _of_kind(claims, ClaimKind.INFERRED)
    agrees = traffic is not None and traffic.says is Role.DECODE
    if traffic is not None and not agrees:
        mixed = traffic.says is Role.MIXED and not peers.prefill
        return (traffic, Confidence.LOW) if mixed else None
    if inferred is not None and not agrees:
        # Nothing here can receive KV from a prefill engine: the label is that of an aggregated pod.
        return (claim if peers.prefill else inferred), Confidence.LOW
    if peers.prefill or agrees:
        return claim, Confidence.HIGH if peers.prefill and agrees else Confidence.MEDIUM
    return None


def _hinted(claims: Sequence[Claim], *, has_engine: bool) -> Decision:
    """Decide by defaults, names and traffic only: they must not contradict each other."""
    kinds = (ClaimKind.INFERRED, ClaimKind.WEAK, ClaimKind.TRAFFIC)
    hints = [c for c in claims if c.kind in kinds and not (has_engine and c.says is None)]
    inferred, traffic = _of_kind(hints, ClaimKind.INFERRED), _of_kind(hints, ClaimKind.TRAFFIC)
    names = {hint.says for hint in hints if hint.kind is ClaimKind.WEAK}
    if len(names) > 1:
        # A name of a router beside one of a phase: a pod called llama-prefill behind router-svc.
        names = set()
    if inferred is not None:
        if names - {inferred.says}:
            return None
        doubt = 1 if traffic is not None and traffic.says is not inferred.says else 0
        return inferred, inferred.confidence.lowered(doubt)
    answers = names | ({traffic.says} if traffic is not None else set())
    if len(answers) != 1:
        return None
    (answer,) = answers
    if answer is Role.PREFILL and any(_FETCH in claim.marker for claim in claims):
        return None
    first = next(hint for hint in hints if hint.says is answer)
    return first, Confidence.MEDIUM if names and traffic is not None else Confidence.LOW


def _of_kind(claims: Sequence[Claim], kind: ClaimKind) -> Claim | None:
    return next((claim for claim in claims if claim.kind is kind), None)


def _verdict(decision: Decision, claims: Sequence[Claim], peers: Peers) -> Verdict:
    beside = [
        note(Source.PEERS, "peer of the same model", role.value, "")
        for role, there in ((Role.PREFILL, peers.prefill), (Role.DECODE, peers.decode))
        if there
    ]
    if decision is None:
        return Verdict(Role.UNKNOWN, Source.NONE.value, Confidence.NONE, (*claims, *beside))
    first, sure = decision
    evidence = (first, *(claim for claim in claims if claim is not first), *beside)
    role = Role.NONE if first.says is None else first.says
    return Verdict(role, first.source.value, sure, evidence, is_engine=first.says is not None)
