"""The values of role detection: markers, claims of single markers, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from disagg_exporter.model import Role

NOT_AN_ENGINE = "not_an_engine"


class Confidence(StrEnum):
    """Confidence of a verdict. `certain` is reserved for what somebody set on purpose."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CERTAIN = "certain"

    @property
    def rank(self) -> int:
        """0 for none, up to 4 for certain."""
        return list(Confidence).index(self)

    def lowered(self, steps: int) -> Confidence:
        """Return this confidence lowered by `steps`, but not below low: none is no answer."""
        return self if self is Confidence.NONE else list(Confidence)[max(1, self.rank - steps)]


@dataclass(frozen=True, slots=True)
class Peers:
    """Whether other engines of the same model are known to have a role."""

    prefill: bool = False
    decode: bool = False


class Traffic(NamedTuple):
    """What an engine did over a window, in requests and tokens; None where it is not reported."""

    finished_requests: float | None = None
    computed_tokens: float | None = None
    external_tokens: float | None = None
    generation_tokens: float | None = None

    def fell_below(self, before: Traffic) -> bool:
        """Return whether any counter decreased, which means that another process counts now."""
        return any(
            old is not None and new is not None and new < old
            for old, new in zip(before, self, strict=True)
        )

    def since(self, before: Traffic) -> Traffic:
        """Return what was done since an earlier scrape of the same counters."""
        pairs = zip(before, self, strict=True)
        return Traffic(*(None if old is None or new is None else new - old for old, new in pairs))


@dataclass(frozen=True, slots=True)
class Markers:
    """What is known of one process or pod; each part may be missing.

    `argv` is its command line, `env` its environment, `labels` those of its pod (annotations may be
    among them), `page` the lines of its metrics page, `name` the name of its pod, process or
    service. `traffic` is preferred to the page's totals since its start.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    page: tuple[str, ...] = ()
    name: str = ""
    peers: Peers = Peers()
    traffic: Traffic | None = None


class Source(StrEnum):
    """Source of a marker, in order of precedence."""

    EXPLICIT = "explicit"
    PROGRAM = "program"
    LLM_D = "llm-d"
    KSERVE = "kserve"
    DISAGGREGATED_SET = "disaggregatedset"
    AIBRIX = "aibrix"
    DYNAMO = "dynamo"
    KTHENA = "kthena"
    PRODUCTION_STACK = "production-stack"
    SGLANG = "sglang"
    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt-llm"
    LMCACHE = "lmcache"
    LMDEPLOY = "lmdeploy"
    ENGINE = "engine"
    RAY_SERVE = "ray-serve"
    ROLE_LABEL = "role-label"
    NAME = "name"
    DYNAMIC = "dynamic"
    TRAFFIC = "traffic"
    PEERS = "peers"
    NONE = "none"

    @property
    def order(self) -> int:
        """Precedence; 0 is the highest."""
        return list(Source).index(self)


class ClaimKind(IntEnum):
    """Kind of claim: how it was obtained."""

    STATED = 0
    CONDITIONAL = 1
    INFERRED = 2
    WEAK = 3
    TRAFFIC = 4
    NOTE = 5


DYNAMIC_WORD = "dynamic"
"""The word of engines and people for a role that may change while the engine runs."""
TOO_LITTLE = "too little"

ClaimedRole: TypeAlias = Role | None
"""A role; `Role.UNKNOWN` for a marker that does not decide; None for `not_an_engine`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One marker that was found and its claim about the role.

    `marker` and `value` are our words or the engines' own vocabulary, never a raw argument or
    value: those may hold secrets. `confidence` is how far it can be trusted alone. A `CONDITIONAL`
    claim holds only beside a prefill peer or agreeing traffic; an `INFERRED` one follows from what
    is absent; a `WEAK` one from a name that people chose.
    """

    kind: ClaimKind
    source: Source
    marker: str
    value: str
    says: ClaimedRole
    confidence: Confidence
    note: str = ""

    @property
    def is_enough(self) -> bool:
        """For a claim by traffic: whether there was enough of it to decide."""
        return self.value != TOO_LITTLE

    @property
    def switches(self) -> bool:
        """Whether it says that the role may change."""
        return self.kind is ClaimKind.NOTE and self.value == DYNAMIC_WORD

    @property
    def role(self) -> str:
        """Its own claim as one word, `unknown` where it does not decide."""
        return NOT_AN_ENGINE if self.says is None else self.says.value

    def sort_key(self) -> tuple[int, int, str, str, str, str]:
        """Return an order that does not depend on the order in which markers arrived."""
        return (self.kind, self.source.order, self.marker, self.value, self.role, self.note)


@dataclass(frozen=True, slots=True)
class Verdict:
    """An engine's role, its source and confidence, and all evidence that was weighed.

    With `is_engine` False it is a router, a client or the like, and `role` is `none`. An engine
    that `switches` can change its role while it runs, and is judged by what it does.
    """

    role: Role
    source: str
    confidence: Confidence
    evidence: tuple[Claim, ...] = ()
    is_engine: bool = True
    switches: bool = False

    @property
    def is_definite(self) -> bool:
        """Whether it is an engine whose role is known."""
        return self.is_engine and self.role not in (Role.UNKNOWN, Role.NONE)

    @property
    def answer(self) -> str:
        """The role as one word, `not_an_engine` included."""
        return self.role.value if self.is_engine else NOT_AN_ENGINE


def stated(
    source: Source, marker: str, value: str, says: ClaimedRole, confidence: Confidence
) -> Claim:
    """Return the claim of a marker that states a role; `Role.UNKNOWN` makes it a note."""
    if says is Role.UNKNOWN:
        return note(source, marker, value, "does not tell the phase")
    return Claim(ClaimKind.STATED, source, marker, value, says, confidence)


def note(source: Source, marker: str, value: str, why: str) -> Claim:
    """Return the note of a marker that was found and decides nothing."""
    return Claim(ClaimKind.NOTE, source, marker, value, Role.UNKNOWN, Confidence.NONE, why)


def weak(source: Source, marker: str, value: str, says: ClaimedRole, why: str = "") -> Claim:
    """Return the claim of a name that somebody chose."""
    return Claim(ClaimKind.WEAK, source, marker, value, says, Confidence.LOW, why)


def conditional_decode(source: Source, marker: str, value: str, why: str) -> Claim:
    """Return a claim of decode that holds only beside a prefill peer or agreeing traffic."""
    return Claim(ClaimKind.CONDITIONAL, source, marker, value, Role.DECODE, Confidence.LOW, why)
