"""Series of nodes in various states, for the terminal view."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_cluster.top.readings.parsing import reading_of
from disagg_cluster.top.readings.series import Series
from disagg_cluster.top.view.building import view_of
from disagg_cluster.top.view.reading_history import ReadingHistory
from disagg_cluster.top.view.values import Links, TerminalView
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import Sample, SeriesFilter, find

AT = 1_800_000_000.0
LINKS = Links(
    "http://127.0.0.1:9847/",
    "http://127.0.0.1:9847/metrics",
    "http://127.0.0.1:9090",
    "/run/disagg-node/logs",
)
Rows = dict[str, list[Sample]]
STATES = ("stopped", "starting", "ready", "draining", "backoff", "failed")


def add(rows: Rows, name: str, value: float, **labels: str) -> None:
    rows.setdefault(name, []).append(Sample(labels, value))


def a_node(node: str = "") -> Rows:
    rows: Rows = {}
    add(rows, "disagg_build_info", 1, version="0.1.0", **of(node))
    return rows


def of(node: str) -> dict[str, str]:
    return {"node": node} if node else {}


def add_gpu(
    rows: Rows,
    index: int,
    seconds: tuple[float, float, float, float, float],
    *,
    node: str = "",
    engine: str = "",
    role: str = "none",
    model: str = "llama",
    watermark: float = AT - 4,
    start: float = AT - 3600,
) -> None:
    """Add a GPU with its seconds in prefill, decode, idle, unattributed and unobserved."""
    gpu = f"GPU-{index:04}"
    whose = {"gpu": gpu, **of(node)}
    add(rows, "disagg_gpu_info", 1, index=str(index), gpu_name="NVIDIA H100", **whose)
    for phase, value in zip(
        ("prefill", "decode", "idle", "unattributed"), seconds[:4], strict=True
    ):
        add(rows, "disagg_gpu_phase_seconds_total", value, phase=phase, role=role, **whose)
    add(rows, "disagg_gpu_unobserved_seconds_total", seconds[4], reason="no_reading", **whose)
    add(rows, "disagg_gpu_watermark_timestamp_seconds", watermark, **whose)
    add(rows, "disagg_gpu_start_timestamp_seconds", start, **whose)
    add(rows, "disagg_gpu_memory_used_bytes", (40 + index) * 2**30, **whose)
    add(rows, "disagg_gpu_memory_total_bytes", 80 * 2**30, **whose)
    add(rows, "disagg_gpu_power_watts", 300.0 + index, **whose)
    if engine:
        assigned = {"engine": engine, "role": role, "engine_namespace": "", **whose}
        add(rows, "disagg_gpu_assignment_info", 1, **assigned)


def add_engine(
    rows: Rows,
    engine: str,
    role: str,
    *,
    node: str = "",
    up: float | None = 1,
    model: str = "llama",
    tokens: float | None = None,
    waits: int | None = None,
    running: float | None = None,
    waiting: float | None = None,
    kv: float | None = None,
    used: float | None = None,
    bound: str = "unknown",
) -> None:
    whose = {"engine": engine, **of(node)}
    info = {"role": role, "model_name": model, "kind": "vllm", "version": "0.32.0"}
    add(rows, "disagg_engine_info", 1, **info, **whose)
    add(rows, "disagg_engine_bound_info", 1, bound=bound, **whose)
    add(rows, "disagg_attribution_info", 1, method="steps", confidence="high", **whose)
    for name, value in (
        ("disagg_engine_up", up),
        ("disagg_engine_kv_cache_usage_ratio", kv),
        ("disagg_engine_capacity_used_ratio", used),
    ):
        if value is not None:
            add(rows, name, value, role=role, **whose)
    for state, count in (("running", running), ("waiting", waiting)):
        if count is not None:
            add(rows, "disagg_engine_requests", count, role=role, state=state, **whose)
    if tokens is not None:
        add(rows, "disagg_engine_phase_tokens_total", tokens, phase=role, role=role, **whose)
    if waits is not None:
        kind = "prefill_" if role == "prefill" else ""
        name = f"disagg_engine_{kind}time_to_first_token_seconds_bucket"
        for bound_seconds, part in (("0.1", 0.0), ("0.5", 0.9), ("2.5", 1.0), ("+Inf", 1.0)):
            add(rows, name, waits * part, le=bound_seconds, **whose)


def add_worker(
    rows: Rows,
    worker: str,
    state: str,
    *,
    node: str = "",
    restarts: int = 0,
    age_seconds: float | None = 600,
    next_start_seconds: float | None = None,
    drained: bool = False,
) -> None:
    whose = {"worker": worker, **of(node)}
    for each in STATES:
        add(rows, "disagg_worker_state", float(each == state), state=each, **whose)
    add(rows, "disagg_worker_restarts_total", restarts, **whose)
    add(rows, "disagg_worker_paused", 0, **whose)
    add(rows, "disagg_worker_drained", float(drained), **whose)
    if age_seconds is not None:
        add(rows, "disagg_worker_start_timestamp_seconds", AT - age_seconds, **whose)
    if next_start_seconds is not None:
        later = AT + next_start_seconds
        add(rows, "disagg_worker_next_start_timestamp_seconds", later, **whose)


def add_pool(rows: Rows, role: str, used_gpus: float, known_gpus: float, node: str = "") -> None:
    whose = {"role": role, "model_name": "llama", "engine_namespace": "", **of(node)}
    add(rows, "disagg_node_capacity_used_gpus", used_gpus, **whose)
    add(rows, "disagg_node_capacity_known_gpus", known_gpus, **whose)


def serving(gpus: int, engines: int, at: float, *, node: str = "", launched: bool = True) -> Rows:
    """Return a serving node at constant load: half of its engines prefill, one engine per GPU."""
    rows = a_node(node)
    passed = at - (AT - 3600)
    for index in range(gpus):
        number = index % engines
        prefills = number < (engines + 1) // 2
        busy = passed * (0.2 + 0.6 * (index % 5) / 4)
        seconds = (busy, 0.0) if prefills else (0.0, busy)
        rest = passed - busy
        whole = (*seconds, 0.9 * rest, 0.1 * rest, 0.0)
        name, role = engine_name(number, engines)
        add_gpu(rows, index, whole, node=node, engine=name, role=role, watermark=at - 4)
    for number in range(engines):
        name, role = engine_name(number, engines)
        add_engine(
            rows,
            name,
            role,
            node=node,
            tokens=passed * (4000 if role == "prefill" else 900 + number),
            waits=round(passed * (1 + number % 3)),
            running=float(number % 7),
            waiting=float(number % 4),
            kv=(number % 10) / 10,
            used=(number % 11) / 10,
            bound=("compute", "bandwidth", "kv", "none")[number % 4],
        )
        if launched:
            add_worker(rows, name, "ready", node=node)
    add_pool(rows, "prefill", 0.9 * gpus / 2, gpus / 2, node)
    add_pool(rows, "decode", 0.3 * gpus / 2, gpus / 2, node)
    return rows


def engine_name(number: int, engines: int) -> tuple[str, str]:
    half = (engines + 1) // 2
    if number < half:
        return f"prefill-{number}", "prefill"
    return f"decode-{number - half}", "decode"


def together(*nodes: Rows) -> Rows:
    rows: Rows = {}
    for node in nodes:
        for name, samples in node.items():
            rows.setdefault(name, []).extend(samples)
    return rows


def series_of(page: bytes) -> Series:
    """Return the series that the view reads from a metrics page."""
    from disagg_cluster.top.readings.series import OF_NODES

    return find(page, SeriesFilter(OF_NODES), SeriesKeys(), "disagg-node")


def viewed(looks: Iterable[tuple[Series, float]], title: str = "gpu-node-7") -> TerminalView:
    """Return the view after these scrapes."""
    history = ReadingHistory()
    for series, at in looks:
        history.add(reading_of(series, at))
    return view_of(title, LINKS, history)
