"""Role claims of an engine's metrics page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.role_names import (
    component_word,
    definite_claim,
    name_claims,
    role_word,
    service_name,
)
from disagg_exporter.roles.evidence.types import (
    Claim,
    Confidence,
    Source,
    Traffic,
    conditional_decode,
    note,
    stated,
    weak,
)

MAX_LINES = 50_000
MAX_LINE_CHARS = 4096
MAX_CHARS = 4 * 1024 * 1024

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
ENGINE_PREFIXES = (
    *("vllm:", "vllm_", "sglang:", "sglang_", "trtllm_", "lmdeploy:", "dynamo_component_"),
)
ROUTER_PREFIXES = (
    *("vllm_router_", "vllm:current_qps", "vllm:healthy_pods", "sgl_router_", "smg_"),
    *("sglang_router_", "llm_d_epp_", "llm_d_inference_scheduler_", "inference_objective_"),
    *("inference_extension_", "inference_pool_", "inference_model_", "dynamo_frontend_"),
    *("dynamo_planner_", "dynamo_router_", "kthena_router_", "envoy_"),
)
FETCH_STAGE = "num_requests_kv_fetch_by_stage"
_RAY = re.compile(r"PD(Prefill|Decode)Server|^(Prefill|Decode):")
TOTALS = {
    "prompt_tokens_by_source_total": "=source",
    "realtime_tokens_total": "=mode",
    "generation_tokens_total": "generation",
    "request_success_total": "requests",
    "num_requests_total": "requests",
}
"""Counters of an engine's traffic, and what they count; with `=`, a label says what."""

NAME_LABELS = ("pod", "job", "container", "exported_pod", "kubernetes_pod_name", "service")


@dataclass(slots=True)
class _PageEvidence:
    """What was found while reading the lines."""

    engine: bool = False
    router: bool = False
    fetch_stage: bool = False
    engine_types: set[str] = field(default_factory=set)
    components: set[str] = field(default_factory=set)
    ray: set[str] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)
    totals: Counter[str] = field(default_factory=Counter)


def page_claims(lines: Iterable[str]) -> tuple[list[Claim], Traffic | None]:
    """Return a page's claims, and the traffic since its engine began, if the page has both."""
    seen = _PageEvidence()
    room = MAX_CHARS
    for at, line in enumerate(lines):
        room -= len(line)
        if at >= MAX_LINES or room < 0:
            break
        # A truncated line could have another meaning.
        if len(line) <= MAX_LINE_CHARS and (sample := _SAMPLE.match(line.strip())):
            _read(seen, sample[1], dict(_LABEL.findall(sample[2] or "")), sample[3])
    return list(_claims(seen)), _traffic(seen)


def _read(seen: _PageEvidence, name: str, labels: Mapping[str, str], value: str) -> None:
    if name.startswith(ROUTER_PREFIXES):
        seen.router = True
        return
    bare = name.removeprefix("ray_")
    # A router that reports its engines adds the label `server`.
    seen.engine = seen.engine or (bare.startswith(ENGINE_PREFIXES) and "server" not in labels)
    bare = re.sub(r"^(vllm|sglang)[:_]", "", bare)
    if bare == FETCH_STAGE:
        seen.fetch_stage = True
    if name.startswith(("sglang:", "sglang_")) and len(seen.engine_types) < 16:
        seen.engine_types.update({labels.get("engine_type", "")} - {""})
    if labels.get("dynamo_endpoint", "generate") == "generate" and len(seen.components) < 16:
        seen.components.update({labels.get("dynamo_component", "")} - {""})
    if ray := _RAY.search(labels.get("deployment", "")[:512]):
        seen.ray.add((ray[1] or ray[2]).lower())
    for label in NAME_LABELS:
        if label in labels and len(seen.names) < 64:
            seen.names.add((label, labels[label]))
    _count(seen, bare, labels, value)


def _count(seen: _PageEvidence, bare: str, labels: Mapping[str, str], value: str) -> None:
    counts = TOTALS.get(bare, "")
    part = labels.get(counts[1:], "") if counts.startswith("=") else counts
    if not part or len(seen.totals) > 32:
        return
    try:
        number = float(value)
    except ValueError:
        return
    if 0 <= number < 2.0**63:
        seen.totals[part] += number  # type: ignore[assignment] # a Counter of floats


def _claims(seen: _PageEvidence) -> Iterator[Claim]:
    if seen.router and not seen.engine:
        yield stated(Source.PROGRAM, "page", "router's series", None, Confidence.MEDIUM)
    for word in sorted(seen.engine_types):
        recognised = role_word(word)
        # Older builds always wrote `unified`.
        sure = Confidence.LOW if recognised and recognised[1] is Role.MIXED else Confidence.HIGH
        yield definite_claim(Source.SGLANG, "page label engine_type", recognised, sure)
    for word in sorted(seen.components):
        marker = "page label dynamo_component"
        if recognised := component_word(word):
            yield stated(Source.DYNAMO, marker, *recognised, Confidence.HIGH)
        elif service := service_name(word):
            yield weak(Source.DYNAMO, marker, *service, "only a name")
        elif word == "backend":
            yield conditional_decode(Source.DYNAMO, marker, word, "decode or aggregated")
    for word in sorted(seen.ray):
        marker = "page label deployment"
        yield stated(Source.RAY_SERVE, marker, word, Role(word), Confidence.MEDIUM)
    if seen.fetch_stage:
        why = "it takes KV from others: not a pure prefill engine"
        yield note(Source.VLLM, f"page series {FETCH_STAGE}", "present", why)
    for label, text in sorted(seen.names):
        claims = name_claims(f"page label {label}", text)
        yield from (claim for claim in claims if claim.says is not None)


def _traffic(seen: _PageEvidence) -> Traffic | None:
    totals = seen.totals
    if not totals:
        return None
    sglang = {"prefill_compute", "decode"} & totals.keys()
    return Traffic(
        finished_requests=totals.get("requests"),
        computed_tokens=totals.get("prefill_compute" if sglang else "local_compute"),
        external_tokens=0.0 if sglang else totals.get("external_kv_transfer"),
        generation_tokens=totals.get("decode" if sglang else "generation"),
    )


MAX_BYTES = 2 * 1024 * 1024
MAX_OF_A_SORT = 64
MAX_OF_A_TOTAL = 512
"""Series of one counter: an engine of 64 ranks has five of each for how requests ended."""

_STARTS = tuple(prefix.encode() for prefix in (*ENGINE_PREFIXES, *ROUTER_PREFIXES))
_RAY_PREFIX = b"\nray_"
_SERIES_NAMES = tuple(name.encode() for name in (FETCH_STAGE, *TOTALS))
# Labels are written in alphabetical order, so these two are adjacent.
_LABEL_PATTERNS = (
    (b'dynamo_component="', re.compile(rb'dynamo_component="[^"]*"(?:,dynamo_endpoint="[^"]*")?')),
    *(
        (f'{label}="'.encode(), re.compile(rb'\b%s="[^"]*"' % label.encode()))
        for label in ("engine_type", "deployment", *NAME_LABELS)
    ),
)


def telling_lines(page: bytes) -> tuple[str, ...]:
    """Return the relevant lines, each once; `page_claims` gives the same result as for all lines.

    A page has a thousand lines and is read every second: most of the work is searching bytes.
    """
    text = b"\n" + page[:MAX_BYTES]
    found = dict.fromkeys((*_first_of_each(text), *_named(text), *_labelled(text)))
    return tuple(line.decode(errors="replace") for line in found)


def _first_of_each(text: bytes) -> Iterator[bytes]:
    for before in (b"\n", _RAY_PREFIX) if _RAY_PREFIX in text else (b"\n",):
        for start in _STARTS:
            at = text.find(before + start)
            if at >= 0:
                yield from _sample(text, at + 1)


def _named(text: bytes) -> Iterator[bytes]:
    for name in _SERIES_NAMES:
        at = text.find(name)
        for _ in range(MAX_OF_A_TOTAL):
            if at < 0:
                break
            yield from _sample(text, at)
            end = text.find(b"\n", at)
            at = text.find(name, end) if end >= 0 else -1


def _labelled(text: bytes) -> Iterator[bytes]:
    for start, pattern in _LABEL_PATTERNS:
        if start not in text:
            continue
        for said in sorted(set(pattern.findall(text)))[:MAX_OF_A_SORT]:
            yield from _sample(text, text.find(said))


def _sample(text: bytes, at: int) -> Iterator[bytes]:
    """Yield the line around a place, unless it is a comment or longer than any legitimate one."""
    begin = text.rfind(b"\n", 0, at + 1) + 1
    end = text.find(b"\n", at)
    line = text[begin : end if end >= 0 else len(text)]
    if line and not line.startswith(b"#") and len(line) <= MAX_LINE_CHARS:
        yield line
