"""The nouns of role detection: what is known of a process, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_exporter.model import Role

NOT_AN_ENGINE = "not_an_engine"


class Confidence(StrEnum):
    """How sure a verdict is. `certain` is kept for what somebody told us on purpose."""

    CERTAIN = "certain"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"

    @property
    def rank(self) -> int:
        """0 for none, up to 4 for certain."""
        return _RANKS.index(self)

    def lowered(self, steps: int) -> Confidence:
        """This one less `steps`, but never less than low: an answer that is none is no answer."""
        return self if self is Confidence.NONE else _RANKS[max(1, self.rank - steps)]


_RANKS = (
    Confidence.NONE,
    Confidence.LOW,
    Confidence.MEDIUM,
    Confidence.HIGH,
    Confidence.CERTAIN,
)


@dataclass(frozen=True, slots=True)
class Peers:
    """Whether other engines of the same model are known to have a role."""

    prefill: bool = False
    decode: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an engine did over a window, in requests and tokens; None where nobody tells."""

    finished_requests: float | None = None
    computed_tokens: float | None = None
    external_tokens: float | None = None
    generation_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Markers:
    """What is known of one process or pod; each part may be missing.

    `argv` is its command line, `env` its environment, `labels` those of its pod (annotations
    may be among them), `page` the lines of its metrics page, `name` what its pod, process or
    service is called. `traffic` is preferred to the page's totals since its start.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    page: tuple[str, ...] = ()
    name: str = ""
    peers: Peers = Peers()
    traffic: Traffic | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One marker that was found and what it says.

    `marker` and `value` are words of ours or of the engines' own vocabulary, never a raw
    argument or value: those may hold secrets. `role` is what the marker says by itself
    (`unknown` where it does not decide), `confidence` how far it can be trusted alone.
    """

    source: str
    marker: str
    value: str
    role: str
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an engine is for, by which source, how surely, and everything that was weighed.

    With `is_engine` False it is a router, a client or the like, and `role` is `none`.
    """

    role: Role
    source: str
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()
    is_engine: bool = True

    @property
    def answer(self) -> str:
        """The role as one word, `not_an_engine` included."""
        return self.role.value if self.is_engine else NOT_AN_ENGINE
