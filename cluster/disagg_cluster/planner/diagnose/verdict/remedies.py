"""The remedy for each cause, as text."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.planner.diagnose.verdict.values import Cause, Remedy, RemedyKind

_WORDS: dict[Cause, str] = {
    Cause.DEMAND: "give the {role} pool another engine, or take one from a pool that has room",
    Cause.ROUTING: "let the router give {engines} no more than its share",
    Cause.SLOW_GPU: "replace the GPU of {engines}; route requests away until then",
    Cause.TP_STRAGGLER: "replace the slow GPU of {engines}: its siblings wait for it in every step",
    Cause.LONG_PROMPTS: "spread long prompts over all {role} engines instead of {engines}",
    Cause.CACHE_COLLAPSE: (
        "find out why prompts no longer hit cached prefixes at {engines}: routing by prefix, "
        "prefix caching, or what clients send"
    ),
    Cause.UNDERFILLED: "let {engines} put more into a step{value}",
    Cause.OVERFILLED: "let {engines} put less into a step{value}",
    Cause.GIANTS: "cut long prompts into smaller chunks, or give them an engine of their own",
    Cause.KV_TRANSFER: "look at the network of {engines}; keep requests away from it until then",
    Cause.DECODE_BACK_PRESSURE: "give the decode pool another engine: prefill waits for it",
    Cause.PREALLOCATION: "let {engines} keep less room for outputs, or give decode more memory",
    Cause.LATENCY_FLOOR: "look at what lies between users and engines: no engine has this wait",
    Cause.KV_FULL: "let fewer requests into {engines} at once, or give its cache more memory",
    Cause.HOST_BOUND: "give the host of {engines} its CPU back, or move the worker",
    Cause.INTERFERENCE: "let {engines} compute fewer prompt tokens a step, or separate the phases",
    Cause.STRANGER: "move the other process off the GPU of {engines}, or the worker",
    Cause.COLD_START: "wait: {engines} has only just started",
    Cause.ROUTER_LIMIT: "raise what the router lets through, or add a router",
}


def remedy(
    cause: Cause,
    kind: RemedyKind,
    role: str,
    engines: Sequence[str],
    *,
    value: int | None,
    gain_seconds: float,
) -> Remedy:
    """The remedy for a cause; `engines` are names, empty for the pool of `role`."""
    target = ", ".join(engines) if engines else f"the {role} pool"
    value_text = f": {value}" if value is not None else ""
    text = _WORDS[cause].format(role=role, engines=target, value=value_text)
    return Remedy(kind, text, value, gain_seconds)
