"""The metrics page of a stand-in engine: vLLM's names and types, the few series that we read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_cluster.demo.steps import Load, StepOutcome

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's own bounds, so that quantiles computed from both pages compare.
_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


@dataclass(slots=True)
class Histogram:
    """A classic Prometheus histogram of seconds with fixed bounds."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_seconds += seconds


@dataclass(slots=True)
class PageCounters:
    """What a stand-in engine has done since it started, as its page tells it."""

    computed_tokens: int = 0
    external_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(_TTFT_BOUNDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(_ITL_BOUNDS))

    def count(self, outcome: StepOutcome) -> None:
        """Add one step that has ended."""
        self.computed_tokens += outcome.computed_tokens
        self.external_tokens += outcome.external_tokens
        self.generation_tokens += outcome.new_tokens
        self.finished += len(outcome.finished)
        for seconds in outcome.first_token_seconds:
            self.time_to_first_token.observe(seconds)
        for seconds in outcome.inter_token_seconds:
            self.inter_token_latency.observe(seconds)


def render(counters: PageCounters, load: Load, *, model_name: str) -> str:
    """The page as text format 0.0.4, marked as that of a simulated engine."""
    base = {"engine": "0", "model_name": model_name}
    waiting = load.waiting + load.deferred
    by_reason = {"capacity": load.waiting, "deferred": load.deferred}
    by_source = {
        "local_compute": counters.computed_tokens,
        "local_cache_hit": 0,
        "external_kv_transfer": counters.external_tokens,
    }
    by_end = {"stop": 0, "length": counters.finished, "abort": counters.aborted, "error": 0}
    prompt_tokens = counters.computed_tokens + counters.external_tokens
    lines = [
        *_family("disagg_simulated_info", "gauge", "This is a stand-in engine: no GPU works."),
        _sample("disagg_simulated_info", base, 1),
        *_family("vllm:num_requests_running", "gauge", "Requests in the batch."),
        _sample("vllm:num_requests_running", base, load.running),
        *_family("vllm:num_requests_waiting", "gauge", "Requests waiting, for any reason."),
        _sample("vllm:num_requests_waiting", base, waiting),
        *_family("vllm:num_requests_waiting_by_reason", "gauge", "Requests waiting, by reason."),
        *_split("vllm:num_requests_waiting_by_reason", base, "reason", by_reason),
        *_family("vllm:kv_cache_usage_perc", "gauge", "KV cache in use, 0 to 1."),
        _sample("vllm:kv_cache_usage_perc", base, load.kv_usage_ratio),
        *_family("vllm:prompt_tokens_total", "counter", "Prompt tokens, from any source."),
        _sample("vllm:prompt_tokens_total", base, prompt_tokens),
        *_family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source."),
        *_split("vllm:prompt_tokens_by_source_total", base, "source", by_source),
        *_family("vllm:generation_tokens_total", "counter", "Tokens written."),
        _sample("vllm:generation_tokens_total", base, counters.generation_tokens),
        *_family("vllm:request_success_total", "counter", "Requests ended, by how."),
        *_split("vllm:request_success_total", base, "finished_reason", by_end),
        *_histogram("vllm:time_to_first_token_seconds", base, counters.time_to_first_token),
        *_histogram("vllm:inter_token_latency_seconds", base, counters.inter_token_latency),
    ]
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{pairs}}} {float(value)!r}"


def _split(
    name: str, base: Mapping[str, str], label: str, values: Mapping[str, float]
) -> Iterator[str]:
    for key, value in values.items():
        yield _sample(name, {**base, label: key}, value)


def _histogram(name: str, base: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    yield from _family(name, "histogram", "Histogram of " + name[5:].replace("_", " ") + ".")
    count = 0
    for bound, here in zip((*histogram.bounds, None), histogram.counts, strict=True):
        count += here
        le = "+Inf" if bound is None else repr(bound)
        yield _sample(name + "_bucket", {**base, "le": le}, count)
    yield _sample(name + "_count", base, count)
    yield _sample(name + "_sum", base, histogram.total_seconds)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
