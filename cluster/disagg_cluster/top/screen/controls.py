"""State set by keys: the page, and the sorting, filter and selection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from disagg_cluster.top.view.values import GpuRow, LiveEngineRow, TerminalView

EngineKey = tuple[str, str]


class ScreenPage(StrEnum):
    """The page on the screen."""

    MAIN = "main"
    WORKERS = "workers"
    ENGINE = "engine"
    LOG = "log"
    HELP = "help"


class EngineOrder(StrEnum):
    """Sort order of engines; names ascending, numbers descending."""

    NAME = "name"
    ROLE = "role"
    WAITING = "waiting"
    KV = "KV"
    TTFT = "TTFT"
    TOKENS = "tokens/s"
    USED = "used"


@dataclass(frozen=True, slots=True)
class Controls:
    """All state that keys change.

    `typing`: keys go into the filter. `selected` is the engine for Enter and `l`; None is the first
    shown. `first_gpu` is the number of GPUs scrolled past.
    """

    page: ScreenPage = ScreenPage.MAIN
    order: EngineOrder = EngineOrder.NAME
    filter: str = ""
    typing: bool = False
    selected: EngineKey | None = None
    first_gpu: int = 0
    by_node: bool = False
    frozen: bool = False
    ended: bool = False


def shown_engines(view: TerminalView, controls: Controls) -> tuple[LiveEngineRow, ...]:
    """The engines that match the filter, in the chosen order."""
    passing = [engine for engine in view.engines if _passes(engine, controls.filter)]
    match controls.order:
        case EngineOrder.NAME:
            return tuple(passing)
        case EngineOrder.ROLE:
            return tuple(sorted(passing, key=lambda each: each.role))
        case _:
            return tuple(sorted(passing, key=lambda each: _figure(each, controls.order)))


def _figure(engine: LiveEngineRow, order: EngineOrder) -> tuple[bool, float]:
    """Sort key: largest first, unknown last."""
    value = {
        EngineOrder.WAITING: engine.waiting,
        EngineOrder.KV: engine.kv_used_ratio,
        EngineOrder.TTFT: engine.first_token_p95_seconds,
        EngineOrder.TOKENS: engine.tokens_per_second,
        EngineOrder.USED: engine.used_ratio,
    }.get(order)
    return value is None, -(value or 0.0)


def _passes(engine: LiveEngineRow, text: str) -> bool:
    searched = f"{engine.node} {engine.engine} {engine.role} {engine.model_name} {engine.state}"
    return text.lower() in searched.lower()


def shown_gpus(view: TerminalView, controls: Controls) -> tuple[GpuRow, ...]:
    """The devices that match the filter themselves or by one of their engines."""
    text = controls.filter.lower()
    if not text:
        return view.gpus
    engines = {(each.node, each.engine) for each in shown_engines(view, controls)}
    return tuple(
        gpu
        for gpu in view.gpus
        if any((gpu.node, engine) in engines for engine in gpu.engines)
        or text in f"{gpu.node} {gpu.gpu} {gpu.gpu_name} {gpu.role}".lower()
    )


def selected_engine(view: TerminalView, controls: Controls) -> LiveEngineRow | None:
    """The selected engine, or else the first shown; None if none is."""
    engines = shown_engines(view, controls)
    chosen = [each for each in engines if (each.node, each.engine) == controls.selected]
    return next(iter((*chosen, *engines)), None)


def pressed(controls: Controls, key: str, view: TerminalView) -> Controls:
    """The state after a key press; unknown keys change nothing.

    Args:
        controls: The state before.
        key: A character, or `up`, `down`, `left`, `right`, `pageup`, `pagedown`, `enter`, `escape`,
            `backspace`, `interrupt`.
        view: The view on the screen.
    """
    if key == "interrupt":
        return replace(controls, ended=True)
    if controls.typing:
        return _typed(controls, key)
    if controls.page is not ScreenPage.MAIN:
        return _on_another_page(controls, key, view)
    return _on_main(controls, key, view)


def _typed(controls: Controls, key: str) -> Controls:
    match key:
        case "enter":
            return replace(controls, typing=False)
        case "escape":
            return replace(controls, typing=False, filter="", first_gpu=0)
        case "backspace":
            return replace(controls, filter=controls.filter[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(controls, filter=controls.filter + key, selected=None, first_gpu=0)
    return controls


def _on_another_page(controls: Controls, key: str, view: TerminalView) -> Controls:
    if key in ("escape", "q", "backspace", "left"):
        return replace(controls, page=ScreenPage.MAIN)
    if key in ("up", "down", "k", "j") and controls.page in (ScreenPage.ENGINE, ScreenPage.LOG):
        return _moved(controls, -1 if key in ("up", "k") else 1, view)
    return _paged(controls, key)


def _on_main(controls: Controls, key: str, view: TerminalView) -> Controls:
    match key:
        case "q":
            return replace(controls, ended=True)
        case "escape":
            return replace(controls, filter="", first_gpu=0)
        case "/":
            return replace(controls, typing=True)
        case "s" | "S":
            orders = list(EngineOrder)
            step = 1 if key == "s" else -1
            following = orders[(orders.index(controls.order) + step) % len(orders)]
            return replace(controls, order=following)
        case "up" | "k":
            return _moved(controls, -1, view)
        case "down" | "j":
            return _moved(controls, 1, view)
        case "pagedown" | "]":
            most = max(0, len(shown_gpus(view, controls)) - 1)
            return replace(controls, first_gpu=min(controls.first_gpu + 4, most))
        case "pageup" | "[":
            return replace(controls, first_gpu=max(0, controls.first_gpu - 4))
        case "g":
            return replace(controls, by_node=not controls.by_node, first_gpu=0)
        case "p" | " ":
            return replace(controls, frozen=not controls.frozen)
    return _paged(controls, key)


def _paged(controls: Controls, key: str) -> Controls:
    page = {
        "?": ScreenPage.HELP,
        "h": ScreenPage.HELP,
        "w": ScreenPage.WORKERS,
        "e": ScreenPage.WORKERS,
        "enter": ScreenPage.ENGINE,
        "right": ScreenPage.ENGINE,
        "l": ScreenPage.LOG,
    }.get(key)
    return controls if page is None else replace(controls, page=page)


def _moved(controls: Controls, step: int, view: TerminalView) -> Controls:
    engines = shown_engines(view, controls)
    if not engines:
        return controls
    now = selected_engine(view, controls)
    place = next(number for number, engine in enumerate(engines) if engine is now) + step
    chosen = engines[max(0, min(place, len(engines) - 1))]
    return replace(controls, selected=(chosen.node, chosen.engine))
