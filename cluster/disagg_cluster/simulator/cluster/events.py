"""What a simulation tells: the nouns of the real edges, and two that only it can know."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.engine.sequence import Request
from disagg_exporter.model import Assignment, DeviceSweep
from disagg_exporter.steps.messages import Message


@dataclass(frozen=True, slots=True)
class PageText:
    """The metrics page of an engine, as a look at it would have found it."""

    engine: str
    t_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """What became of a user's request.

    Which engines served it, when its user saw the first token (None if never) and when it ended.
    `failed` if an engine died over it or none could take it.
    """

    request: Request
    prefill_engine: str
    decode_engine: str
    first_token_ns: int | None
    ended_ns: int
    failed: bool = False


Event = Message | Assignment | DeviceSweep | PageText | RequestEnded
