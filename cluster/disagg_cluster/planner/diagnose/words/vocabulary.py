"""Words for causes and for the parts of the time to first token."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.planner.diagnose.verdict.values import (
    BEFORE_ENGINES,
    Cause,
    EngineKey,
    TtftPart,
)
from disagg_exporter.model import Role
from disagg_exporter.model.counted import counted

CAUSES = {
    Cause.DEMAND: "demand above what the pool can serve",
    Cause.ROUTING: "unbalanced routing",
    Cause.SLOW_GPU: "slow GPU",
    Cause.TP_STRAGGLER: "one slow GPU of a tensor-parallel group",
    Cause.LONG_PROMPTS: "long prompts concentrated on some engines",
    Cause.CACHE_COLLAPSE: "prefix cache hits less than it did",
    Cause.UNDERFILLED: "batches that are not filled",
    Cause.OVERFILLED: "batches that are too large",
    Cause.GIANTS: "giant prompts ahead of the others",
    Cause.KV_TRANSFER: "slow or failing KV transfers",
    Cause.DECODE_BACK_PRESSURE: "back-pressure of decode engines",
    Cause.PREALLOCATION: "decode engines refuse to allocate ahead",
    Cause.LATENCY_FLOOR: "a latency floor that load does not change",
    Cause.KV_FULL: "full KV cache",
    Cause.HOST_BOUND: "host-bound steps",
    Cause.INTERFERENCE: "prefill and decode in the same steps",
    Cause.STRANGER: "another program on the GPU",
    Cause.COLD_START: "an engine that has just started",
    Cause.ROUTER_LIMIT: "a router at its limit",
}
PARTS = {
    TtftPart.ROUTER: "router",
    TtftPart.QUEUE: "queue",
    TtftPart.PREFILL: "prefill",
    TtftPart.KV_TRANSFER: "KV transfer",
    TtftPart.FIRST_DECODE: "first decode step",
}
_MOST_NAMED = 4


def duration_words(seconds: float) -> str:
    """A duration with three digits at most: 1.24 s, 42 ms, 0.3 ms."""
    if abs(seconds) >= 100:
        return f"{seconds:,.0f} s"
    if abs(seconds) >= 0.1:
        return f"{seconds:.3g} s"
    milliseconds = 1000 * seconds
    if abs(milliseconds) >= 10:
        return f"{milliseconds:.0f} ms"
    return f"{round(milliseconds, 1):g} ms"


def whose_words(role: Role, engines: Sequence[EngineKey], cause: Cause | None = None) -> str:
    """The engines, or the pool if none is named; where a cause lies before them, that."""
    if cause in BEFORE_ENGINES:
        return "before the engines"
    if not engines:
        return f"the {role.value} pool"
    named = [f"{each.engine} on {each.node}" for each in engines[:_MOST_NAMED]]
    if len(engines) > _MOST_NAMED:
        named.append(f"{len(engines) - _MOST_NAMED} more")
    several = "engine" if len(engines) == 1 else "engines"
    return f"{role.value} {several} {_listed(named)}"


def looked_at_words(roles: Sequence[Role], parts: Sequence[TtftPart]) -> str:
    """What was diagnosed: engines by role, and the known parts."""
    counts = [counted(roles.count(role), f"{role.value} engine") for role in dict.fromkeys(roles)]
    named = [PARTS[each] for each in TtftPart if each in parts]
    of = f"{_listed(named)} of " if named else ""
    return f"{of}{_listed(counts)}" if counts else _listed(named)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
