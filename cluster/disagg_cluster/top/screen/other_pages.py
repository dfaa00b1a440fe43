"""The other pages: an engine, its log, workers and events, help."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.top.screen import sections
from disagg_cluster.top.screen.bars import bar, history_line, known_slots
from disagg_cluster.top.screen.columns import bound_words, worker_columns
from disagg_cluster.top.screen.lines import Glyphs, Line, Span
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
from disagg_cluster.top.screen.tables import table
from disagg_cluster.top.view.values import LiveEngineRow, TerminalView, WorkerRow
from disagg_exporter.model.counted import counted

_HELP = """
All values are for a minute that ended some seconds ago, with the latest final accounts.

up, down, k, j select an engine          enter, right   look at it alone
l              the end of its log        w or e         workers and events
s and S        sort engines by the next column, or the one before
/              filter by name, role, model, node or state; esc shows all again
[ ] or page up and down                  scroll through GPUs
g              nodes or GPUs, where there are several nodes
space or p     pause, continue           esc or q       back; q on the main page leaves
?              this page                 ctrl-c         leaves from anywhere

USED is how much of an engine's capacity within its latency target is used: full, not busy.
BOUND is what keeps it from doing more. TTFT of a prefill engine ends with its one token.
TTFT and ITL are 95th percentiles. A hyphen stands for an unknown value; it is never 0.
docs/top.md says more.
"""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last lines of a log; `why_not` explains why there are none."""

    path: str = ""
    lines: tuple[str, ...] = ()
    why_not: str = ""


def help_page(view: TerminalView, width: int) -> list[Line]:
    """The keys and the meaning of the columns."""
    lines = sections.head(view, width)[:1]
    for text in _HELP.strip("\n").splitlines():
        lines += [(Span(part),) for part in textwrap.wrap(text, width) or [""]]
    return lines


def workers_page(view: TerminalView, width: int, glyphs: Glyphs) -> list[Line]:
    """All workers, problems and events."""
    lines = sections.head(view, width)[:1]
    if view.workers:
        lines += table(worker_columns(view), view.workers, width, glyphs)
    else:
        lines.append((Span("no workers: engines here were started by others", "dim"),))
    none = (Span("none so far", "dim"),)
    lines += [(), (Span("wrong", "title"),)]
    for trouble in view.troubles:
        lines += [
            (Span(part),) for part in textwrap.wrap(f"{trouble.severity}: {trouble.text}", width)
        ]
    if not view.troubles:
        lines.append(none)
    return [*lines, (), (Span("events", "title"),), *(sections.events(view) or [none])]


def engine_page(
    view: TerminalView, engine: LiveEngineRow | None, log: LogTail, width: int, glyphs: Glyphs
) -> list[Line]:
    """Everything about one engine."""
    lines = sections.head(view, width)[:1]
    if engine is None:
        return [*lines, (Span("no engine is shown; esc goes back", "dim"),)]
    lines.append((Span(f"{engine.node}/{engine.engine}".lstrip("/"), "bold"),))
    worker = next(
        (w for w in view.workers if (w.node, w.worker) == (engine.node, engine.engine)), None
    )
    for name, text in _facts(engine, worker):
        lines.append((Span(f"{name:<16}", "dim"), Span(text)))
    size = max(8, (width - 30) // 2)
    for gpu in view.gpus:
        if gpu.node == engine.node and engine.engine in gpu.engines:
            busy = gpu.time.occupancy_ratio if gpu.time else None
            more = (
                f"{memory(gpu.memory_used_bytes, gpu.memory_total_bytes)} {watts(gpu.power_watts)}"
            )
            lines.append(
                (
                    Span(f"GPU {gpu.index or gpu.gpu} ", "dim"),
                    *bar(gpu.time, size, glyphs),
                    Span(f" {percent(busy):>4} "),
                    *history_line(gpu.history, size, glyphs, known_slots(view.history)),
                    Span(f" {more}"),
                )
            )
    own = [event for event in reversed(view.events) if engine.engine in event.text]
    if own:
        lines += [(), (Span("events", "title"),)]
        lines += [(Span(event.text),) for event in own[:5]]
    lines += [(), *_log(log)]
    return lines


def log_page(engine: LiveEngineRow | None, log: LogTail, height: int | None) -> list[Line]:
    """The last lines of an engine's log."""
    name = engine.engine if engine is not None else "no engine"
    lines: list[Line] = [(Span(f"log of {name}", "title"),), *_log(log)]
    if height is not None and len(lines) > height - 1:
        return [*lines[:2], *lines[len(lines) - (height - 3) :]]
    return lines


def _log(log: LogTail) -> Iterator[Line]:
    if log.path:
        yield (Span(log.path, "dim"),)
    if log.why_not:
        yield (Span(log.why_not, "dim"),)
    for line in log.lines:
        yield (Span(line),)


def _facts(engine: LiveEngineRow, worker: WorkerRow | None) -> Iterator[tuple[str, str]]:
    yield "role", engine.role or ABSENT
    yield "model", engine.model_name or ABSENT
    yield "server", f"{engine.kind} {engine.version}".strip() or ABSENT
    yield "state", f"{engine.state or ABSENT} {elapsed(engine.state_seconds)}".strip()
    if worker is not None:
        pid = "" if worker.pid is None else f", pid {worker.pid}"
        yield "worker", f"{counted(worker.restarts, 'time')} started again{pid}"
        if worker.reason:
            yield "why", worker.reason
    yield "GPUs", ", ".join(engine.gpus) or ABSENT
    yield "requests", f"{count(engine.running)} running, {count(engine.waiting)} waiting"
    yield "KV cache", f"{percent(engine.kv_used_ratio)} used"
    yield (
        "TTFT, ITL (p95)",
        (
            f"{latency(engine.first_token_p95_seconds)}, "
            f"{latency(engine.between_tokens_p95_seconds)}"
        ),
    )
    yield "tokens/s", rate(engine.tokens_per_second)
    yield "capacity used", f"{percent(engine.used_ratio)}, bound: {bound_words(engine.bound)}"
    sure = f", {engine.confidence} confidence" if engine.confidence else ""
    yield "measured by", f"{engine.method or ABSENT}{sure}"
