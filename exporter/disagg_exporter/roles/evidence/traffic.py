"""What an engine's traffic suggests of its role: the last resort, never more than a hint."""

from __future__ import annotations

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.claims import TOO_LITTLE, Claim, Kind, Source, note
from disagg_exporter.roles.evidence.types import Confidence, Traffic

MIN_REQUESTS = 20
MIN_TOKENS = 10_000
_MOST, _ALMOST_NONE = 0.8, 0.05
_ONE_TOKEN, _MANY_TOKENS = 1.5, 8.0
_MARKER = "traffic"


def traffic_claim(traffic: Traffic) -> Claim | None:
    """Read traffic; None where there is none to read."""
    computed, made = traffic.computed_tokens, traffic.generation_tokens
    if computed is None or made is None:
        return None
    external, requests = traffic.external_tokens or 0.0, traffic.finished_requests
    prompt = computed + external
    if requests is None:
        return _by_tokens(computed, external, made)
    if requests < MIN_REQUESTS or prompt <= 0:
        return note(Source.TRAFFIC, _MARKER, TOO_LITTLE, "too few requests to tell")
    per_request = made / requests
    if external / prompt >= _MOST and per_request >= _MANY_TOKENS:
        return _says(Role.DECODE, "prompts come from elsewhere, answers are long")
    if computed / prompt >= _MOST and per_request <= _ONE_TOKEN:
        return _says(Role.PREFILL, "computes prompts, about one token each; scoring does so too")
    if computed / prompt >= _MOST and per_request >= _MANY_TOKENS:
        return _says(Role.MIXED, "computes prompts and writes long answers")
    return note(Source.TRAFFIC, _MARKER, "undecided", "fits no role")


def _by_tokens(computed: float, external: float, made: float) -> Claim:
    """The same where nobody counts requests, as on SGLang's page."""
    total = computed + external + made
    if total < MIN_TOKENS:
        return note(Source.TRAFFIC, _MARKER, TOO_LITTLE, "too few tokens to tell")
    if external > 0:
        return note(Source.TRAFFIC, _MARKER, "undecided", "requests are not counted")
    if made <= _ALMOST_NONE * computed:
        # Long prompts with short answers look the same on a mixed engine unless it is extreme.
        if made <= 0.001 * computed:
            return _says(Role.PREFILL, "computes prompts, writes next to nothing")
        return note(Source.TRAFFIC, _MARKER, "undecided", "short answers, or a prefill engine")
    if computed <= _ALMOST_NONE * made:
        return _says(Role.DECODE, "writes tokens, computes next to no prompt")
    return _says(Role.MIXED, "computes prompts and writes answers")


def _says(role: Role, why: str) -> Claim:
    return Claim(Kind.TRAFFIC, Source.TRAFFIC, _MARKER, role.value, role, Confidence.LOW, why)
