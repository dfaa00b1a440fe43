"""Role words as people and engines write them."""

from __future__ import annotations

import re

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import (
    DYNAMIC_WORD,
    Claim,
    ClaimedRole,
    Confidence,
    Source,
    note,
    stated,
    weak,
)

MAX_NAME_CHARS = 512

_WORDS = {
    Role.PREFILL: ("prefill", "prefiller", "prefill-only", "prefill-worker", "p-instance"),
    Role.DECODE: ("decode", "decoder", "decode-only", "decode-worker", "d-instance"),
    Role.ENCODE: ("encode", "encoder", "encode-only", "encode-worker", "e-instance"),
    Role.UNKNOWN: (DYNAMIC_WORD,),
    Role.MIXED: (
        *("both", "mixed", "mix", "agg", "aggregate", "aggregated", "all", "pd", "p-d"),
        *("unified", "hybrid", "null", "prefill-decode", "prefill-and-decode", "decode-prefill"),
        *("encode-prefill", "encode-decode", "encode-prefill-decode", "pdfusion"),
    ),
}
_ROLE_BY_WORD = {word: role for role, words in _WORDS.items() for word in words}
_TENSORRT = {
    "context": Role.PREFILL,
    "ctx": Role.PREFILL,
    "generation": Role.DECODE,
    "gen": Role.DECODE,
    "mm-encoder": Role.ENCODE,
    "coordinator": None,
    "server-coordinator": None,
}
NOT_ENGINE_WORDS = frozenset(
    (
        *("router", "routing", "proxy", "scheduler", "gateway", "frontend", "planner", "epp"),
        *("lb", "loadbalancer", "load-balancer", "mini-lb", "sidecar", "coordinator", "processor"),
        *("bench", "benchmark", "client", "tokenizer", "renderer", "profiler", "controller"),
        *("cache-server", "lora-controller"),
    )
)

_NAME_PHASE = re.compile(r"prefill|decode|encode[-_]?worker|(?<![a-z])encode(?![a-z])", re.I)
_NAME_AGGREGATED = re.compile(r"(?<![a-z])(agg|aggregated?)(?![a-z])", re.I)
_NAME_NOT_ENGINE = re.compile(
    r"(?<![a-z])(router|proxy|epp|frontend|gateway|planner|sidecar|mini-?lb|bench|benchmark|"
    r"load-?balancer|endpoint-?picker|renderer|grafana|prometheus|exporter)(?![a-z])",
    re.I,
)
_SERVICE = re.compile(r"(trtllm|vllm|sglang)-?(prefill|decode|encode)-?worker", re.I)


def plain(text: str) -> str:
    """Normalise a value for comparison: no quotes, lower case, dashes."""
    return text[:MAX_NAME_CHARS].strip().strip("\"'\\").strip().lower().replace("_", "-")


def role_word(text: str) -> tuple[str, Role] | None:
    """Return the role word that `text` is, and its role; None if it is not a role word."""
    word = plain(text)
    return (word, _ROLE_BY_WORD[word]) if word in _ROLE_BY_WORD else None


def tensorrt_word(text: str) -> tuple[str, Role | None] | None:
    """Return the same for TensorRT-LLM's words (`CONTEXT`, `gen0`); a coordinator is no engine."""
    word = re.sub(r"[-]?\d{1,4}$", "", plain(text))
    return (word, _TENSORRT[word]) if word in _TENSORRT else role_word(text)


def word_claims(
    source: Source, marker: str, text: str, sure: Confidence, beside: Confidence = Confidence.MEDIUM
) -> tuple[Claim, ...]:
    """Return the claim of a role word, if any; a non-engine word has confidence `beside`."""
    if recognised := role_word(text):
        return (stated(source, marker, *recognised, sure),)
    if (word := plain(text)) in NOT_ENGINE_WORDS:
        return (stated(source, marker, word, None, beside),)
    return ()


def service_name(text: str) -> tuple[str, Role] | None:
    """Return what a service called like `VllmDecodeWorker` is, as (`DecodeWorker`, role)."""
    found = _SERVICE.search(text[:MAX_NAME_CHARS])
    if found is None:
        return None
    word = found[2].lower()
    return f"{word.capitalize()}Worker", _ROLE_BY_WORD[word]


def component_word(text: str) -> tuple[str, Role] | None:
    """Return a Dynamo component's role word and role; a word for both phases decides nothing."""
    found = role_word(text.removeprefix("tensorrt_llm_").removeprefix("sglang_"))
    return None if found is None or found[1] is Role.MIXED else found


def definite_claim(
    source: Source,
    marker: str,
    recognised: tuple[str, ClaimedRole] | None,
    sure: Confidence,
    why: str = "no role that we know",
) -> Claim:
    """Return the claim of a marker that exists only for the role; a note for an unknown value."""
    if recognised is None:
        return note(source, marker, "?", why)
    return stated(source, marker, *recognised, sure)


def name_claims(marker: str, text: str, source: Source = Source.NAME) -> tuple[Claim, ...]:
    """Return what a freely chosen name of a pod, a service or a file suggests, if anything."""
    name = text[:MAX_NAME_CHARS]
    if not_engine := _NAME_NOT_ENGINE.search(name):
        return (weak(source, marker, not_engine[1].lower(), None, "only a name"),)
    phases = {found[0].lower()[:6] for found in _NAME_PHASE.finditer(name)}
    if not phases and _NAME_AGGREGATED.search(name):
        return (weak(source, marker, "agg", Role.MIXED, "only a name"),)
    if len(phases) != 1:
        return ()
    role = {"prefil": Role.PREFILL, "decode": Role.DECODE, "encode": Role.ENCODE}[phases.pop()]
    return (weak(source, marker, role.value, role, "only a name"),)
