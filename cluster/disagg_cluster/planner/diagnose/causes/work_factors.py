"""Causes, texts and remedies for factors of the work at engines that compute prompts."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.diagnose.verdict.values import Cause, RemedyKind


@dataclass(frozen=True, slots=True)
class WorkFactor:
    """A factor and the cause that its growth means.

    `text` has a placeholder for the ratio of growth.
    """

    name: str
    cause: Cause
    text: str
    remedy: RemedyKind
    impairs_engine: bool = True
    """Whether the engine serves less because of it, so that others get its requests."""


WORK_FACTORS = (
    WorkFactor(
        "host_gap",
        Cause.HOST_BOUND,
        "steps with the host's gaps between them take {:.2f} times as long as the GPUs need",
        RemedyKind.MOVE_WORKER,
    ),
    WorkFactor(
        "computed_share",
        Cause.CACHE_COLLAPSE,
        "{:.2f} times as many tokens of a prompt are not found in the cache",
        RemedyKind.NONE,
    ),
    WorkFactor(
        "prompt_length",
        Cause.LONG_PROMPTS,
        "prompts there are {:.2f} times as long",
        RemedyKind.ROUTE_AWAY,
    ),
    WorkFactor(
        "prompt_spread",
        Cause.GIANTS,
        "prompt lengths vary {:.2f} times as much (squared)",
        RemedyKind.SET_BATCHED_TOKENS,
        impairs_engine=False,
    ),
    WorkFactor(
        "share",
        Cause.ROUTING,
        "it is given {:.2f} times its share of the requests",
        RemedyKind.ROUTE_AWAY,
        impairs_engine=False,
    ),
)
