"""The columns of devices, nodes, engines and workers."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.top.screen.bars import bar, history_line, known_slots
from disagg_cluster.top.screen.lines import Glyphs
from disagg_cluster.top.screen.numbers import (
    ABSENT,
    count,
    elapsed,
    latency,
    memory,
    percent,
    rate,
    watts,
)
from disagg_cluster.top.screen.tables import TableColumn
from disagg_cluster.top.view.values import (
    GpuRow,
    GpuTime,
    LiveEngineRow,
    NodeRow,
    TerminalView,
    WorkerRow,
)

_STATES = {
    "ready": "good",
    "up": "good",
    "failed": "broken",
    "backoff": "broken",
    "no answer": "broken",
    "not registered": "broken",
    "starting": "notice",
    "draining": "notice",
    "paused": "notice",
    "drained": "notice",
    "paused, drained": "notice",
}
_ROLES = {"prefill": "prefill", "decode": "decode"}
_FILLING, _FULL = 0.7, 0.95


def gpu_columns(view: TerminalView, glyphs: Glyphs) -> Sequence[TableColumn[GpuRow]]:
    """Columns of the device table; its first row may be the total."""
    several = len(view.nodes) > 1
    known = known_slots(view.history)
    kinds = len({gpu.gpu_name for gpu in view.gpus})
    kind: list[TableColumn[GpuRow]] = [TableColumn("KIND", lambda gpu: gpu.gpu_name, dropped_at=5)]
    return [
        TableColumn("GPU", lambda gpu: _gpu_name(gpu, several)),
        TableColumn("ROLE", lambda gpu: gpu.role, style=lambda gpu: _ROLES.get(gpu.role, "")),
        TableColumn(
            "WHAT IT DID",
            drawn=lambda gpu, width: bar(gpu.time, width, glyphs),
            stretch=3,
            least=24,
        ),
        TableColumn("BUSY", lambda gpu: percent(_busy(gpu.time)), right=True),
        TableColumn(
            "HISTORY",
            drawn=lambda gpu, width: history_line(gpu.history, width, glyphs, known),
            stretch=2,
            least=16,
        ),
        TableColumn(
            "MEMORY",
            lambda gpu: memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
            dropped_at=2,
            right=True,
        ),
        TableColumn("POWER", lambda gpu: watts(gpu.power_watts), dropped_at=3, right=True),
        TableColumn("ENGINE", lambda gpu: " ".join(gpu.engines) or ABSENT, dropped_at=4),
        *(kind if kinds > 1 else ()),
    ]


def _gpu_name(gpu: GpuRow, several: bool) -> str:
    name = gpu.index or gpu.gpu
    return f"{gpu.node}/{name}" if several and gpu.node else name


def _busy(time: GpuTime | None) -> float | None:
    return None if time is None else time.occupancy_ratio


def node_columns(view: TerminalView, glyphs: Glyphs) -> Sequence[TableColumn[NodeRow]]:
    """Columns of the node table, one row per node."""
    known = known_slots(view.history)
    return [
        TableColumn("NODE", lambda node: node.node or ABSENT),
        TableColumn(
            "GPUS" if view.device_noun == "GPU" else "DEVICES",
            lambda node: count(node.gpus),
            right=True,
        ),
        TableColumn("ENGINES", lambda node: count(node.engines), dropped_at=2, right=True),
        TableColumn(
            "WHAT THEY DID",
            drawn=lambda node, width: bar(node.time, width, glyphs),
            stretch=3,
            least=24,
        ),
        TableColumn("BUSY", lambda node: percent(_busy(node.time)), right=True),
        TableColumn(
            "HISTORY",
            drawn=lambda node, width: history_line(node.history, width, glyphs, known),
            stretch=2,
            least=16,
        ),
    ]


def engine_columns(view: TerminalView) -> Sequence[TableColumn[LiveEngineRow]]:
    """Columns of the engine table; latencies are 95th percentiles."""
    several = len(view.nodes) > 1
    return [
        TableColumn(
            "ENGINE", lambda each: f"{each.node}/{each.engine}" if several else each.engine
        ),
        TableColumn(
            "ROLE", lambda each: each.role or ABSENT, style=lambda e: _ROLES.get(e.role, "")
        ),
        TableColumn(
            "STATE",
            lambda each: " ".join(
                filter(None, (each.state or ABSENT, elapsed(each.state_seconds)))
            ),
            style=lambda each: _STATES.get(each.state, ""),
        ),
        TableColumn("RUN", lambda each: count(each.running), right=True),
        TableColumn("WAIT", lambda each: count(each.waiting), right=True),
        TableColumn("KV", lambda each: percent(each.kv_used_ratio), right=True),
        TableColumn("TTFT", lambda each: latency(each.first_token_p95_seconds), right=True),
        TableColumn("ITL", lambda each: latency(each.between_tokens_p95_seconds), right=True),
        TableColumn("TOK/S", lambda each: rate(each.tokens_per_second), right=True),
        TableColumn(
            "USED",
            lambda each: percent(each.used_ratio),
            right=True,
            style=lambda each: fullness_style(each.used_ratio),
        ),
        TableColumn("BOUND", lambda each: bound_words(each.bound)),
        TableColumn("GPUS", lambda each: ",".join(each.gpus) or ABSENT, dropped_at=2),
        TableColumn("MODEL", lambda each: each.model_name or ABSENT, dropped_at=3),
        TableColumn(
            "SERVER", lambda each: f"{each.kind} {each.version}".strip() or ABSENT, dropped_at=4
        ),
        TableColumn("MEASURED BY", lambda each: each.method or ABSENT, dropped_at=5),
    ]


def bound_words(bound: str) -> str:
    """What limits an engine; "has room" if nothing does."""
    return {"": ABSENT, "unknown": ABSENT, "none": "has room", "kv": "KV cache"}.get(bound, bound)


def fullness_style(ratio: float | None) -> str:
    """The style of a used-capacity ratio, with the thresholds of the alerts."""
    if ratio is None:
        return ""
    return "broken" if ratio >= _FULL else "warning" if ratio > _FILLING else "good"


def worker_columns(view: TerminalView) -> Sequence[TableColumn[WorkerRow]]:
    """Columns of the worker table, like those of `disagg-node status`."""
    several = len(view.nodes) > 1
    return [
        TableColumn(
            "WORKER", lambda each: f"{each.node}/{each.worker}" if several else each.worker
        ),
        TableColumn(
            "STATE",
            lambda each: each.state + (f" ({', '.join(each.marks)})" if each.marks else ""),
            style=lambda each: _STATES.get(each.state, ""),
        ),
        TableColumn("FOR", lambda each: elapsed(each.state_seconds) or ABSENT, right=True),
        TableColumn("RESTARTS", lambda each: str(each.restarts), right=True),
        TableColumn("PID", lambda each: ABSENT if each.pid is None else str(each.pid), right=True),
        TableColumn("WHY", _why),
    ]


def _why(worker: WorkerRow) -> str:
    ahead = ""
    if worker.next_start_seconds is not None:
        ahead = f"next start in {elapsed(worker.next_start_seconds)}; "
    elif worker.deadline_seconds is not None:
        ahead = f"given up in {elapsed(worker.deadline_seconds)}; "
    return (ahead + worker.reason).rstrip("; ")
