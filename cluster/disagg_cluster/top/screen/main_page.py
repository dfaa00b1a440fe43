"""The main page: distributes the lines of the terminal to its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disagg_cluster.top.screen import sections
from disagg_cluster.top.screen.bars import legend
from disagg_cluster.top.screen.columns import (
    engine_columns,
    gpu_columns,
    node_columns,
    worker_columns,
)
from disagg_cluster.top.screen.controls import (
    Controls,
    selected_engine,
    shown_engines,
    shown_gpus,
)
from disagg_cluster.top.screen.lines import Glyphs, Line, Span, folded
from disagg_cluster.top.screen.tables import table
from disagg_cluster.top.view.values import GpuRow, TerminalView
from disagg_exporter.model.counted import counted

_ALL = "all"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the page: its lines, the least number to show, and how many stay on top."""

    lines: Sequence[Line]
    least: int
    fixed: int = 0
    first: int = 0
    what: str = ""


def main_page(
    view: TerminalView, controls: Controls, width: int, height: int | None, glyphs: Glyphs
) -> list[Line]:
    """The lines of the page; all of them, without the key help, if `height` is None."""
    engines = shown_engines(view, controls)
    chosen = selected_engine(view, controls) if height is not None else None
    place = next((number for number, each in enumerate(engines) if each is chosen), 0)
    engine_lines = table(engine_columns(view), engines, width, glyphs, chosen) if engines else []
    gpu_lines = _gpu_lines(view, controls, width, glyphs, height)
    worker_lines = table(worker_columns(view), view.workers, width, glyphs) if view.workers else []
    models, planned = sections.models(view, width), sections.planned(view)
    troubles, events = sections.troubles(view), sections.events(view)
    nothing = sections.nothing_here(view)
    head = sections.head(view, width)
    parts = [
        _Part(head, min(len(head), 5)),
        _Part(
            gpu_lines,
            min(4, len(gpu_lines)),
            fixed=2,
            first=controls.first_gpu,
            what=view.device_noun,
        ),
        _Part([legend(view.time, glyphs)] if view.gpus else [], 1),
        _Part(sections.users(view), 0),
        _Part([*models, *planned], min(2, len(models) + len(planned))),
        _Part(nothing, len(nothing)),
        _Part(engine_lines, min(4, len(engine_lines)), fixed=1, first=place, what="engine"),
        _Part(worker_lines, 0, fixed=1, what="worker"),
        _Part(troubles, min(2, len(troubles)), what="trouble"),
        _Part(events, 0),
    ]
    if height is None:
        # No keys exist to scroll, so long lines are wrapped.
        return [line for part in parts for each in part.lines for line in folded(each, width)]
    sizes = _sizes(parts, height - 1)
    body = [line for part, size in zip(parts, sizes, strict=True) for line in _cut(part, size)]
    blank: list[Line] = [()] * max(0, height - 1 - len(body))
    return [*body[: height - 1], *blank, sections.foot(controls, width, glyphs)]


# Priority of parts if lines are scarce: problems first, then the tables.
_HEAD, _GPUS, _LEGEND, _USERS, _MODELS, _NOTHING, _ENGINES, _WORKERS, _TROUBLES, _EVENTS = range(10)
_TURNS = (
    (_TROUBLES, 3),
    (_MODELS, 4),
    (_GPUS, 10),
    (_ENGINES, 8),
    (_USERS, 1),
    (_EVENTS, 3),
    (_GPUS, None),
    (_ENGINES, None),
    (_MODELS, None),
    (_TROUBLES, None),
    (_WORKERS, None),
    (_EVENTS, None),
    (_HEAD, None),
)


def _sizes(parts: Sequence[_Part], lines: int) -> list[int]:
    sizes = [min(part.least, len(part.lines)) for part in parts]
    left = lines - sum(sizes)
    for place, most in _TURNS:
        have = len(parts[place].lines)
        wanted = (have if most is None else min(have, most)) - sizes[place]
        given = max(0, min(wanted, left))
        # A table header without rows is useless.
        if place == _WORKERS and sizes[place] + given == 1:
            given = 0
        sizes[place] += given
        left -= given
    return sizes


def _cut(part: _Part, size: int) -> Sequence[Line]:
    """`size` lines of a part: the fixed ones, then a window of the rest."""
    if size >= len(part.lines):
        return part.lines
    rows = size - part.fixed
    below = part.lines[part.fixed :]
    if not part.what or rows < 2:
        return part.lines[:size]
    # One line reports how many are hidden.
    seen = rows - 1
    first = max(0, min(part.first, len(below) - seen))
    if part.what == "engine":
        first = max(0, min(part.first - seen // 2, len(below) - seen))
    hidden = len(below) - seen
    more = f"… {counted(hidden, f'more {part.what}')}"
    note: Line = (Span(more + (f", {first} above" if first else ""), "dim"),)
    return [*part.lines[: part.fixed], *below[first : first + seen], note]


def _gpu_lines(
    view: TerminalView, controls: Controls, width: int, glyphs: Glyphs, height: int | None
) -> list[Line]:
    if not view.gpus:
        return []
    several = len(view.nodes) > 1
    # If devices do not fit, each node gets one line instead, unless keys say otherwise.
    crowded = several and height is not None and len(view.gpus) > height // 2
    kinds = {gpu.gpu_name for gpu in view.gpus}
    together = replace(
        view.gpus[0],
        node="",
        gpu=_ALL,
        index=_ALL,
        gpu_name="",
        # The total row shows the GPU type where other rows show the engine.
        engines=tuple(kinds) if len(kinds) == 1 else (),
        role=counted(len(view.gpus), view.device_noun),
        time=view.time,
        history=view.history,
        memory_used_bytes=_sum([gpu.memory_used_bytes for gpu in view.gpus]),
        memory_total_bytes=_sum([gpu.memory_total_bytes for gpu in view.gpus]),
        power_watts=_sum([gpu.power_watts for gpu in view.gpus]),
    )
    if several and crowded != controls.by_node:
        all_nodes = replace(
            view.nodes[0],
            node=_ALL,
            gpus=len(view.gpus),
            engines=len(view.engines),
            time=view.time,
            history=view.history,
        )
        nodes = [node for node in view.nodes if controls.filter.lower() in node.node.lower()]
        return table(node_columns(view, glyphs), [all_nodes, *nodes], width, glyphs)
    gpus: list[GpuRow] = [together, *shown_gpus(view, controls)]
    if len(view.gpus) == 1:
        del gpus[0]
    return table(gpu_columns(view, glyphs), gpus, width, glyphs)


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum, if every value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
