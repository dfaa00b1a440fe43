"""Role words as people and engines write them."""

from __future__ import annotations

import re

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import (
    DYNAMIC_WORD,
    Claim,
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
    """A value in the form in which words are compared: no quotes, lower case, dashes."""
    return text[:MAX_NAME_CHARS].strip().strip("\"'\\").strip().lower().replace("_", "-")


def role_word(text: str) -> tuple[str, Role] | None:
    """The role word that `text` is, and its role; None if it is no such word."""
    word = plain(text)
    return (word, _ROLE_BY_WORD[word]) if word in _ROLE_BY_WORD else None


def tensorrt_word(text: str) -> tuple[str, Role | None] | None:
    """The same in TensorRT-LLM's words (`CONTEXT`, `gen0`); a coordinator is no engine."""
    word = re.sub(r"[-]?\d{1,4}$", "", plain(text))
    return (word, _TENSORRT[word]) if word in _TENSORRT else role_word(text)


def is_not_engine_word(text: str) -> bool:
    """Whether `text` is what people call a router, a client or another thing beside engines."""
    return plain(text) in NOT_ENGINE_WORDS


def word_claim(
    source: Source, marker: str, text: str, sure: Confidence, beside: Confidence = Confidence.MEDIUM
) -> Claim | None:
    """Return what a role word claims; a word for what stands beside engines at `beside`."""
    if recognised := role_word(text):
        return stated(source, marker, *recognised, sure)
    if is_not_engine_word(text):
        return stated(source, marker, plain(text), None, beside)
    return None


def service_name(text: str) -> tuple[str, Role] | None:
    """What a service called like `VllmDecodeWorker` is, as (`DecodeWorker`, role)."""
    found = _SERVICE.search(text[:MAX_NAME_CHARS])
    if found is None:
        return None
    word = found[2].lower()
    return f"{word.capitalize()}Worker", _ROLE_BY_WORD[word]


def explicit_claim(marker: str, text: str) -> Claim:
    """What a marker of our own says: the operator's word, which alone is certain."""
    if recognised := role_word(text):
        return stated(Source.EXPLICIT, marker, *recognised, Confidence.CERTAIN)
    return note(Source.EXPLICIT, marker, "?", "no role that we know")


def name_claim(marker: str, text: str, source: Source = Source.NAME) -> Claim | None:
    """What a free name of a pod, a service or a file suggests, if anything."""
    name = text[:MAX_NAME_CHARS]
    if not_engine := _NAME_NOT_ENGINE.search(name):
        return weak(source, marker, not_engine[1].lower(), None, "only a name")
    phases = {found[0].lower()[:6] for found in _NAME_PHASE.finditer(name)}
    if len(phases) > 1:
        return None
    for phase in phases:
        role = {"prefil": Role.PREFILL, "decode": Role.DECODE, "encode": Role.ENCODE}[phase]
        return weak(source, marker, role.value, role, "only a name")
    if _NAME_AGGREGATED.search(name):
        return weak(source, marker, "agg", Role.MIXED, "only a name")
    return None
