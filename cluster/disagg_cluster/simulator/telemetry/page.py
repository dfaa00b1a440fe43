"""The metrics page of a simulated engine: every family of vLLM itself, in its format.

Families of the process rather than the engine are left out (`python_*`, `process_*`, `http_*`).
`disagg_simulated_info` is added, so that it is not mistaken for a real one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from disagg_cluster.simulator.engine.batch import SchedulerState
from disagg_cluster.simulator.telemetry.page_counters import HistogramCounter, PageCounters
from disagg_cluster.simulator.telemetry.page_families import FAMILIES, VllmFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Labels of `vllm:cache_config_info` that do not apply to a simulated engine.
_UNKNOWN_CACHE_CONFIG = dict.fromkeys(
    (
        *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "mamba_block_size"),
        *("kv_offloading_size", "mamba_page_size_padded", "num_cpu_blocks", "prefix_match_unit"),
        *("skip_page_size_padded", "sliding_window", "num_gpu_blocks_override"),
    ),
    "None",
)
_USUAL_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "gpu_memory_utilization": "0.9",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "auto",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What does not change while an engine lives.

    `created_seconds` is Unix time. `blocks` are those of the cache, including the one that vLLM
    keeps for itself.
    """

    model_name: str
    created_seconds: float
    connector: bool
    blocks: int
    block_tokens: int
    bytes_per_token: int = 1
    longest_tokens: int = 1024
    prefix_caching: bool = True


class Page:
    """One engine's page. Only numbers change between two renderings, so the rest is cached."""

    def __init__(self, facts: PageFacts, counters: PageCounters) -> None:
        self.counters = counters
        self._families = [f for f in FAMILIES if facts.connector or not f.connector]
        # The text before each number, and each number: as last rendered, from 0 on.
        self._parts: list[str] = []
        self._values: list[float] = []
        self._tail = _family("disagg_simulated_info", "gauge", "A simulated engine: no GPU works.")
        self._tail += _head("disagg_simulated_info", _base(facts)) + "1.0\n"
        for family in self._families:
            self._add(family, facts)
        name = "vllm:cache_config_info"
        self._tail += _family(name, "gauge", "What the KV cache is like.")
        self._tail += _head(name, {"engine": "0", **_cache_config(facts)}) + "1.0\n"

    def render(self, state: SchedulerState) -> str:
        """Return the page in text format 0.0.4."""
        values: list[float] = []
        for family in self._families:
            value = family.read(self.counters, state)
            if isinstance(value, HistogramCounter):
                values.extend(accumulate(value.counts))
                values.extend((values[-1], value.total))
            elif isinstance(value, int | float):
                values.append(value)
            else:
                values.extend(value)
        parts, known, text = self._parts, 0.0, "0.0"
        for place, (before, value) in enumerate(zip(self._values, values, strict=True)):
            if value == before:
                continue
            # Adjacent values are often equal: the upper buckets of a histogram.
            if value != known:
                known, text = value, number(value)
            parts[2 * place + 1] = text
        self._values = values
        return "".join(parts) + self._tail

    def _add(self, family: VllmFamily, facts: PageFacts) -> None:
        name = "vllm:" + family.name
        base = _base(facts) if family.engine else {"model_name": facts.model_name}
        self._tail += _family(name, family.kind, family.text)
        if family.kind == "histogram":
            value = family.read(self.counters, SchedulerState())
            bounds = value.bounds if isinstance(value, HistogramCounter) else ()
            for le in (*map(number, bounds), "+Inf"):
                self._sample(_head(name + "_bucket", {**base, "le": le}))
            self._sample(_head(name + "_count", base))
            self._sample(_head(name + "_sum", base))
        else:
            for labels in _splits(family, base):
                self._sample(_head(name, labels))
        if family.kind != "gauge":
            created = name.removesuffix("_total") + "_created"
            if family.kind == "histogram":
                created = name + "_created"
            self._tail += _family(created, "gauge", family.text)
            for labels in _splits(family, base):
                self._tail += _head(created, labels) + number(facts.created_seconds) + "\n"

    def _sample(self, head: str) -> None:
        """Add a sample after the text since the previous one."""
        self._parts += (self._tail + head, "0.0")
        self._values.append(0.0)
        self._tail = "\n"


def number(value: float) -> str:
    """Return a number as Prometheus clients write it, from a million up with an exponent."""
    text = repr(float(value))
    if value < 1e6 or "e" in text:
        return text
    whole, _, rest = text.partition(".")
    digits = (whole + rest).rstrip("0")
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{mantissa}e+{len(whole) - 1:02d}"


def _base(facts: PageFacts) -> dict[str, str]:
    return {"engine": "0", "model_name": facts.model_name}


def _splits(family: VllmFamily, base: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    if not family.label:
        yield base
    for value in family.values:
        yield {**base, family.label: value}


def _family(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _head(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{pairs}}} "


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _cache_config(facts: PageFacts) -> dict[str, str]:
    tokens = facts.blocks * facts.block_tokens
    return {
        **_UNKNOWN_CACHE_CONFIG,
        **_USUAL_CACHE_CONFIG,
        "block_size": str(facts.block_tokens),
        "effective_attention_block_size": str(facts.block_tokens),
        "enable_prefix_caching": str(facts.prefix_caching),
        "kv_cache_max_concurrency": str(tokens / facts.longest_tokens),
        "kv_cache_memory_bytes": str(tokens * facts.bytes_per_token),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(facts.blocks),
    }
