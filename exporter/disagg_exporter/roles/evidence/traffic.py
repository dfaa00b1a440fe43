"""Role claims of an engine's traffic: the last resort, never more than a hint."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import (
    TOO_LITTLE,
    Claim,
    ClaimKind,
    Confidence,
    Source,
    Traffic,
    note,
)

MIN_REQUESTS = 20
MIN_TOKENS = 10_000
_MOST, _ALMOST_NONE = 0.8, 0.05
_ONE_TOKEN, _MANY_TOKENS = 1.5, 8.0
_MARKER = "traffic"


def traffic_claim(traffic: Traffic) -> Claim | None:
    """Return the claim of some traffic; None without traffic."""
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
        return _claim_of(Role.DECODE, "prompts come from elsewhere, answers are long")
    if computed / prompt >= _MOST and per_request <= _ONE_TOKEN:
        return _claim_of(
            Role.PREFILL, "computes prompts, about one token each; scoring does so too"
        )
    if computed / prompt >= _MOST and per_request >= _MANY_TOKENS:
        return _claim_of(Role.MIXED, "computes prompts and writes long answers")
    return note(Source.TRAFFIC, _MARKER, "undecided", "fits no role")


def _by_tokens(computed: float, external: float, made: float) -> Claim:
    """Return the same where requests are not counted, as on SGLang's page."""
    total = computed + external + made
    if total < MIN_TOKENS:
        return note(Source.TRAFFIC, _MARKER, TOO_LITTLE, "too few tokens to tell")
    if external > 0:
        return note(Source.TRAFFIC, _MARKER, "undecided", "requests are not counted")
    if made <= _ALMOST_NONE * computed:
        # On a mixed engine, long prompts with short answers look the same unless extreme.
        if made <= 0.001 * computed:
            return _claim_of(Role.PREFILL, "computes prompts, writes next to nothing")
        return note(Source.TRAFFIC, _MARKER, "undecided", "short answers, or a prefill engine")
    if computed <= _ALMOST_NONE * made:
        return _claim_of(Role.DECODE, "writes tokens, computes next to no prompt")
    return _claim_of(Role.MIXED, "computes prompts and writes answers")


def _claim_of(role: Role, why: str) -> Claim:
    return Claim(ClaimKind.TRAFFIC, Source.TRAFFIC, _MARKER, role.value, role, Confidence.LOW, why)


WINDOW_SECONDS = 10.0
"""How long traffic is observed; longer where there is too little of it to decide."""
REMEMBERED_WINDOWS = 6
"""Number of recent windows of which more than half must show a role for it to be kept."""


@dataclass(slots=True)
class SwitchingRole:
    """The role of an engine that can switch roles: only sustained traffic changes it.

    Its flags give its initial role. Its traffic shows what it does, and a window in which it
    switches looks like both phases at once: so another role counts only after two consecutive
    windows agree. An engine that switches more often has no single role: none is claimed while its
    windows disagree.
    """

    traffic_seen: Traffic | None = None
    role: Role | None = None
    _since: tuple[float, Traffic] | None = None
    _next: Role | None = None
    _is_disputed: bool = False
    _agreed: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED_WINDOWS))

    def ingest(self, total: Traffic, now_seconds: float) -> Traffic | None:
        """Add the totals of its page; return the traffic that shows its role, None for none.

        Args:
            total: All since its engine began.
            now_seconds: On any clock that only goes forward.
        """
        if self._since is None or total.fell_below(self._since[1]):
            self._forget()
            self._is_disputed = False
            self._since = now_seconds, total
        if self.role is None and not self._is_disputed:
            # All that it has done so far is the best evidence available.
            self._decide(total)
        elif now_seconds - self._since[0] >= WINDOW_SECONDS:
            recent = total.since(self._since[1])
            claim = traffic_claim(recent)
            if claim is not None and claim.is_enough:
                self._decide(recent)
                self._since = now_seconds, total
        return self.traffic_seen

    def _decide(self, traffic: Traffic) -> None:
        claim = traffic_claim(traffic)
        says = claim.says if claim is not None and claim.kind is ClaimKind.TRAFFIC else None
        if says is not None and says is not self.role:
            if says is not self._next and not self._is_first:
                self._next = says
            else:
                self._forget()
                self.traffic_seen, self.role, self._is_disputed = traffic, says, False
                return
        elif says is not None:
            self.traffic_seen, self._next = traffic, None
        if self.role is None:
            return
        self._agreed.append(says is self.role)
        if len(self._agreed) == REMEMBERED_WINDOWS and 2 * sum(self._agreed) <= REMEMBERED_WINDOWS:
            self._forget()
            self._is_disputed = True

    @property
    def _is_first(self) -> bool:
        """Whether it never had a role that could be kept."""
        return self.role is None and not self._is_disputed

    def _forget(self) -> None:
        self.traffic_seen = self.role = self._next = None
        self._agreed.clear()
