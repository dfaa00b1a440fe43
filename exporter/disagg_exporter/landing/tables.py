"""Tables of devices and engines, and breakdowns of time as bars."""

from __future__ import annotations

from html import escape

from disagg_exporter.landing.charts import spark
from disagg_exporter.landing.problems import waiting_text
from disagg_exporter.landing.view import DeviceRow, EngineRow, NodeView, TimeBreakdown
from disagg_exporter.model import Bottleneck, EngineCapacity, Method, Use, WorkerStatus
from disagg_exporter.model.counted import counted

ABSENT = "-"
"""Shown for a value that is not known."""

PATTERNS = """\
<svg class="defs" width="0" height="0" aria-hidden="true"><defs>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" class="unattributed"/><circle cx="2" cy="2" r="1.2" class="ink"/>
</pattern>
<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)">
<rect width="6" height="6" class="unobserved"/><rect width="2" height="6" class="ink"/>
</pattern></defs></svg>
"""
"""Patterns of the two unknown uses, so that they differ by more than colour."""


def bar(split: TimeBreakdown, height: int) -> str:
    """Return the bar itself; a screen reader reads the words beside it instead."""
    parts, left = [], 0.0
    for use, ratio in split.ratios.items():
        if ratio > 0:
            parts.append(
                f'<rect class="{use.value}" x="{100 * left:.2f}%" width="{100 * ratio:.2f}%"'
                f' height="100%"/>'
            )
        left += ratio
    return (
        f'<svg class="bar" width="100%" height="{height}" aria-hidden="true" focusable="false">'
        f"{''.join(parts)}</svg>"
    )


def words(split: TimeBreakdown) -> str:
    """Return the same in words: every use present, in percent."""
    ratios = {use: ratio for use, ratio in split.ratios.items() if ratio >= 0.005}
    parts = [f"{use.value} {percent(ratio)}" for use, ratio in ratios.items()]
    return escape(", ".join(parts)) or "not known yet"


def legend() -> str:
    """Return the legend of the colours."""
    items = "".join(
        f'<li><svg class="key" width="14" height="14" aria-hidden="true">'
        f'<rect class="{use.value}" width="100%" height="100%"/></svg>{use.value}</li>'
        for use in Use
    )
    return f'<ul class="legend" aria-label="Colours of the bars">{items}</ul>'


def percent(ratio: float | None) -> str:
    """Return a ratio as text; an unknown one is a hyphen."""
    if ratio is None:
        return ABSENT
    return f"{100 * ratio:.0f}%"


_GIB = 1 << 30
_BOTTLENECKS = {
    Bottleneck.COMPUTE: "compute",
    Bottleneck.BANDWIDTH: "memory bandwidth",
    Bottleneck.KV: "KV cache",
    Bottleneck.HOST: "the host",
}

_DEVICE_HEADS = ("GPU", "Role", "Engine", "What it did", "Occupancy", "Memory", "Power")
_ENGINE_HEADS = (
    *("Engine", "Role", "State", "Server", "Model", "Running", "Waiting", "KV cache", "Full"),
)

_CLASSES = {
    "Engine": "name",
    "Server": "name",
    "Model": "name",
    "What it did": "did",
    **dict.fromkeys(("Occupancy", "Memory", "Power", "Running", "Waiting", "KV cache"), "number"),
}


def devices_table(view: NodeView) -> str:
    """Return the table of all devices of the node."""
    title = '<h2 id="gpus-title">GPUs</h2>'
    if not view.devices:
        return f"{title}<p>This node has none.</p>"
    kinds = sorted({_kind(row) for row in view.devices})
    alike = len(kinds) == 1
    if alike:
        title += f'<p class="when">{len(view.devices)} &times; {escape(kinds[0])}</p>'
    rows = "".join(_device(row, "" if alike else _kind(row)) for row in view.devices)
    return title + _table("gpus-title", "devices", _DEVICE_HEADS, rows)


def engines_table(view: NodeView) -> str:
    """Return the table of all current engines."""
    title = '<h2 id="engines-title">Engines</h2>'
    if not view.engines:
        return f"{title}<p>None is known.</p>"
    rows = "".join(_engine(row, view.taken_timestamp_seconds) for row in view.engines)
    return title + _table("engines-title", "engines", _ENGINE_HEADS, rows)


def _table(label: str, kind: str, heads: tuple[str, ...], rows: str) -> str:
    """Return a table that scrolls on its own when wider than the screen, also by keyboard."""
    head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in heads)
    return (
        f'<div class="scroll" id="{kind}-scroll" role="region" aria-labelledby="{label}"'
        f' tabindex="0"><table class="{kind}" role="table"><thead role="rowgroup"><tr role="row">'
        f'{head}</tr></thead><tbody role="rowgroup">{rows}</tbody></table></div>'
    )


def _kind(row: DeviceRow) -> str:
    device = row.device
    return device.gpu_name + ("" if device.weight == 1 else f", {device.weight:.2g} of a GPU")


def _device(row: DeviceRow, kind: str) -> str:
    device, reading, split = row.device, row.reading, row.split
    did = f'{bar(split, 14)}<span class="words">{words(split)}</span>' if split else ABSENT
    used = reading.memory_used_bytes if reading else None
    total = (reading.memory_total_bytes if reading else None) or device.memory_total_bytes
    power = reading.power_watts if reading else None
    engines = "<br>".join(escape(name) for name in row.engines) or "none"
    name = f' <span class="name">{escape(kind)}</span>' if kind else ""
    occupancy = percent(split.occupancy_ratio if split else None)
    watts = ABSENT if power is None else f"{power:.0f} W"
    hour = spark(row.hour, 18) if row.hour else ""
    role = f'<span class="role {row.role.value}">{row.role.value}</span>'
    cells = (role, engines, did + hour, occupancy, _memory(used, total), watts)
    return (
        f'<tr role="row"><th scope="row" role="rowheader" title="{escape(device.gpu)}">'
        f"{device.index}{name}</th>{_cells(_DEVICE_HEADS, cells)}</tr>"
    )


def _engine(row: EngineRow, now_seconds: float) -> str:
    status, account = row.status, row.account
    page = status.page
    running: float | None = account.running if account else None
    waiting: float | None = account.waiting if account else None
    # FPM reports tokens of the cache, which give a share only where its size is known.
    by_fpm = account is not None and account.method is Method.FPM
    usage = account.kv_usage_ratio if account and not by_fpm else None
    if page is not None:
        # An engine that sends no steps is known by its page.
        running = page.running if running is None else running
        waiting = page.waiting if waiting is None else waiting
        usage = page.kv_usage_ratio if usage is None else usage
    state = f"{status.state.value}, no answer" if status.up is False else status.state.value
    worker = row.worker
    if worker is not None and worker.state != "ready":
        state = _worker_state(worker, now_seconds)
    elif worker is not None and worker.restarts:
        state += f' <span class="words">{_restarts(worker)}</span>'
    if status.follows is not None:
        state += f", follower of {escape(status.follows)}" if status.follows else ", follower"
    kind = " ".join(part for part in (status.kind, status.version) if part)
    role = f'<span class="role {status.role.value}">{status.role.value}</span>'
    cells = (
        *(role, state, escape(kind), escape(status.model_name) or ABSENT),
        *(_count(running), _count(waiting), percent(usage), _fullness(row.capacity)),
    )
    return (
        f'<tr role="row"><th scope="row" role="rowheader">{escape(status.engine)}</th>'
        f"{_cells(_ENGINE_HEADS, cells)}</tr>"
    )


def _cells(heads: tuple[str, ...], cells: tuple[str, ...]) -> str:
    """Return cells that carry their column heads, which a narrow screen shows beside them."""
    return "".join(
        f'<td role="cell" class="{_CLASSES.get(head, "")}" data-head="{head}">{cell}</td>'
        for head, cell in zip(heads[1:], cells, strict=True)
    )


def _worker_state(worker: WorkerStatus, now_seconds: float) -> str:
    """Return the state of a worker that is not simply ready."""
    when = waiting_text(worker, now_seconds)
    more = ", ".join(filter(None, (when, _restarts(worker))))
    return worker.state + (f' <span class="words">{escape(more)}</span>' if more else "")


def _restarts(worker: WorkerStatus) -> str:
    """Return how often it was restarted; empty if never."""
    if not worker.restarts:
        return ""
    return counted(worker.restarts, "restart")


def _fullness(capacity: EngineCapacity | None) -> str:
    """Return how full an engine is, and its bottleneck."""
    if capacity is None or capacity.used_ratio is None:
        return ABSENT
    held = capacity.bottleneck not in (Bottleneck.NONE, Bottleneck.UNKNOWN)
    return percent(capacity.used_ratio) + (
        f", by {_BOTTLENECKS[capacity.bottleneck]}" if held else ""
    )


def _memory(used_bytes: int | None, total_bytes: int | None) -> str:
    if used_bytes is None:
        return ABSENT
    used = f"{used_bytes / _GIB:.0f}"
    return f"{used} of {total_bytes / _GIB:.0f} GiB" if total_bytes else f"{used} GiB"


def _count(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.0f}"
