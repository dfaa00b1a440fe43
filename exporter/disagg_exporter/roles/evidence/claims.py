"""What one marker claims, and in which order markers are believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import NOT_AN_ENGINE, Confidence, Evidence


class Source(StrEnum):
    """Who set a marker, in the order in which they are believed."""

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
        """0 is believed first."""
        return list(Source).index(self)


class Kind(IntEnum):
    """What sort of claim it is: how it was come by."""

    STATED = 0
    CONDITIONAL = 1
    INFERRED = 2
    WEAK = 3
    TRAFFIC = 4
    NOTE = 5


DYNAMIC_WORD = "dynamic"
"""What engines and people call a role that may change while the engine runs."""
TOO_LITTLE = "too little"

Says: TypeAlias = Role | None
"""A role; `Role.UNKNOWN` for a marker that does not decide; None for `not_an_engine`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One marker's word on the role.

    A `CONDITIONAL` claim holds only beside a prefill peer or agreeing traffic; an `INFERRED`
    one follows from what is absent; a `WEAK` one from a name that people chose.
    """

    kind: Kind
    source: Source
    marker: str
    value: str
    says: Says
    confidence: Confidence
    note: str = ""

    @property
    def is_enough(self) -> bool:
        """Of a claim by traffic: whether there was enough to tell by, whatever it told."""
        return self.value != TOO_LITTLE

    @property
    def switches(self) -> bool:
        """Whether it says that the role may change."""
        return self.kind is Kind.NOTE and self.value == DYNAMIC_WORD

    @property
    def word(self) -> str:
        """What it says as one word."""
        return NOT_AN_ENGINE if self.says is None else self.says.value

    def evidence(self) -> Evidence:
        """The claim as the reader of a verdict sees it."""
        return Evidence(
            self.source.value, self.marker, self.value, self.word, self.confidence, self.note
        )

    def sort_key(self) -> tuple[int, int, str, str, str, str]:
        """An order that does not depend on the order in which markers came."""
        return (self.kind, self.source.order, self.marker, self.value, self.word, self.note)


def stated(source: Source, marker: str, value: str, says: Says, confidence: Confidence) -> Claim:
    """A marker that says a role outright; `Role.UNKNOWN` makes it a note."""
    if says is Role.UNKNOWN:
        return note(source, marker, value, "does not tell the phase")
    return Claim(Kind.STATED, source, marker, value, says, confidence)


def note(source: Source, marker: str, value: str, why: str) -> Claim:
    """A marker that was seen and decides nothing."""
    return Claim(Kind.NOTE, source, marker, value, Role.UNKNOWN, Confidence.NONE, why)


def weak(source: Source, marker: str, value: str, says: Says, why: str = "") -> Claim:
    """A name that somebody chose."""
    return Claim(Kind.WEAK, source, marker, value, says, Confidence.LOW, why)


def conditional_decode(source: Source, marker: str, value: str, why: str) -> Claim:
    """Decode if there is a prefill peer or the traffic agrees; else it may be aggregated."""
    return Claim(Kind.CONDITIONAL, source, marker, value, Role.DECODE, Confidence.LOW, why)
