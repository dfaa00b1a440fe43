"""Sections of the main page: head and foot, models, plan, problems, events."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from disagg_cluster.top.screen.columns import fullness_style
from disagg_cluster.top.screen.controls import Controls, EngineOrder
from disagg_cluster.top.screen.lines import Glyphs, Line, Span, fitted, width_of
from disagg_cluster.top.screen.numbers import clock, count, latency, percent, rate, window
from disagg_cluster.top.view.values import ModelRow, TerminalView, model_words
from disagg_exporter.model.counted import counted

SIMULATED = "SIMULATED"
_FEW_RATES_SECONDS = 30.0
_KEYS = (
    *(("q", "quit"), ("?", "help"), ("s", "sort"), ("/", "filter"), ("enter", "engine")),
    *(("l", "log"), ("w", "workers and events")),
)


def head(view: TerminalView, width: int) -> list[Line]:
    """The title and time of the view, then links and notes."""
    left = [Span("disagg-node top", "title"), Span(f"  {view.title}", "bold")]
    if view.simulated:
        left.append(Span(f"  {SIMULATED}", "warning"))
    right = when(view)
    gap = width - width_of(left) - len(right)
    if gap < 2:
        right, gap = clock(view.at_seconds), max(1, width - width_of(left) - 8)
    lines: list[Line] = [(*left, Span(" " * gap), Span(right, "dim"))]
    if view.unanswered:
        lines.append((Span(f"not renewed: {view.unanswered}", "broken"),))
    lines += _links(view, width)
    if view.links.note:
        lines += [(Span(part, "warning"),) for part in textwrap.wrap(view.links.note, width)]
    return lines


def when(view: TerminalView) -> str:
    """The time window the view covers."""
    if view.time is None or view.behind_seconds is None:
        return f"{clock(view.at_seconds)} UTC" if view.at_seconds else ""
    over = f"over {window(view.time.window_seconds)}, until {view.behind_seconds:.0f} s ago"
    return f"{over}  {clock(view.at_seconds)} UTC"


def _links(view: TerminalView, width: int) -> Iterator[Line]:
    links = view.links
    metrics = links.metrics.removeprefix(links.page.rstrip("/")) if links.page else links.metrics
    items = [
        (name, text)
        for name, text in (
            ("page", links.page),
            ("metrics", metrics),
            ("Prometheus", links.prometheus),
            ("Grafana", links.grafana),
            ("logs", links.logs),
        )
        if text
    ]
    line: list[Span] = []
    for name, text in items:
        spans = [Span(f"{name} ", "dim"), Span(f"{text}  ")]
        if line and width_of(line) + width_of(spans) > width + 2:
            yield tuple(line)
            line = []
        line += spans
    if line:
        yield tuple(line)


def foot(controls: Controls, width: int, glyphs: Glyphs) -> Line:
    """Active key settings, and the available keys."""
    if controls.typing:
        return (Span("filter: ", "title"), Span(f"{controls.filter}_", "bold"))
    spans: list[Span] = []
    if controls.frozen:
        spans.append(Span("PAUSED (space goes on)  ", "warning"))
    if controls.order is not EngineOrder.NAME:
        spans.append(Span(f"by {controls.order}  ", "notice"))
    if controls.filter:
        spans.append(Span(f"only {controls.filter!r} (esc: all)  ", "notice"))
    for key, what in _KEYS:
        spans += [Span(key, "key"), Span(f" {what}  ", "dim")]
    return fitted(tuple(spans), width, glyphs)


def users(view: TerminalView) -> list[Line]:
    """Arrivals and latency of users' requests, as far as known."""
    parts = []
    if view.arrivals_per_second is not None:
        parts.append(f"{rate(view.arrivals_per_second)} requests/s arrive")
    if view.users_first_token_p95_seconds is not None:
        parts.append(f"first token within {latency(view.users_first_token_p95_seconds)} (p95)")
    tokens = [each.tokens_per_second for each in view.engines if each.tokens_per_second is not None]
    if tokens:
        parts.append(f"{count(sum(tokens))} tokens/s")
    if not parts:
        return []
    # In a young view, as with --once, they are of a moment, unlike the minute in the head.
    seconds = view.rates_seconds
    over = ""
    if seconds is not None and seconds < _FEW_RATES_SECONDS:
        over = f"over {window(seconds)}: "
    return [(Span("users   ", "dim"), Span(over + ", ".join(parts)))]


def models(view: TerminalView, width: int) -> list[Line]:
    """Each model's verdict, then its pools' fill levels, on a separate line if necessary."""
    several = len({each.cluster for each in view.models}) > 1
    lines: list[Line] = []
    for model in view.models:
        verdict, pools = _verdict(model, several), _pools(model, view.device_noun)
        whole = (*verdict, Span("  "), *pools)
        lines += [whole] if width_of(whole) <= width else [verdict, (Span("  "), *pools)]
    return lines


def _verdict(model: ModelRow, several: bool) -> Line:
    cluster = model.cluster if several else ""
    name = model_words(model.model_name or "(no model name)", model.namespace, cluster)
    words = "; ".join(model.verdicts) or "the capacity of its pools is not learned yet"
    return Span(f"{name}: ", "bold"), Span(words, verdict_style(words))


def _pools(model: ModelRow, device: str) -> Line:
    spans = [Span("used:", "dim")]
    for number, pool in enumerate(model.pools):
        of = f" of {_gpus(pool.gpus, device)}" if pool.gpus else ""
        role = pool.role if pool.role in ("prefill", "decode") else "bold"
        spans += [
            Span(f"{',' if number else ''} "),
            Span(f"{pool.role} ", role),
            Span(percent(pool.used_ratio), fullness_style(pool.used_ratio)),
            Span(of, "dim"),
        ]
    return tuple(spans)


def _gpus(gpus: float, device: str) -> str:
    """A number of GPUs, which slices of them make no whole one."""
    rounded = round(gpus, 2)
    return counted(int(rounded), device) if rounded.is_integer() else f"{rounded:,} {device}s"


def verdict_style(words: str) -> str:
    """The style of a verdict."""
    if "short" in words or words.endswith("full"):
        return "broken"
    return "warning" if "filling" in words else "dim" if "not learned" in words else "good"


def planned(view: TerminalView) -> list[Line]:
    """The planner's output: bottlenecks, moves, and GPUs by role."""
    lines: list[Line] = []
    for each in view.bottlenecks:
        cost = "" if each.ttft_cost_seconds is None else f", {latency(each.ttft_cost_seconds)} TTFT"
        sure = "" if each.confidence_ratio is None else f", {percent(each.confidence_ratio)} sure"
        text = f"{each.model_name}: {each.whose}: {each.cause}{cost}{sure}: {each.action}"
        lines.append((Span("held back  ", "warning"), Span(text.rstrip(": "))))
    lines += [(Span("move       ", "notice"), Span(text)) for text in view.moves]
    clusters = {plan.cluster for plan in view.plans} | {model.cluster for model in view.models}
    several = len(clusters) > 1
    for plan in view.plans:
        cluster = plan.cluster if several else ""
        model = model_words(plan.model_name, plan.namespace, cluster)
        text = f"{model} {plan.role} on {plan.gpu_name}: {count(plan.current)} now"
        if plan.needed is not None:
            text += f", {count(plan.needed)} needed in {plan.horizon} (p90)"
        if plan.recommended is not None:
            text += f", {count(plan.recommended)} recommended"
        lines.append((Span("plan       ", "dim"), Span(text)))
    return lines


def troubles(view: TerminalView) -> list[Line]:
    """Problems, the worst first."""
    return [
        (Span(f"{each.severity:<8}", each.severity.value), Span(each.text))
        for each in view.troubles
    ]


def events(view: TerminalView) -> list[Line]:
    """Events, the newest first."""
    return [
        (Span(f"{clock(each.at_seconds)}  ", "dim"), Span(each.text))
        for each in reversed(view.events)
    ]


def nothing_here(view: TerminalView) -> list[Line]:
    """Hints where no engine runs; empty if one does, or before the first reading."""
    if view.engines or view.workers or not view.at_seconds:
        return []
    what = "No GPU and no engine is here." if not view.gpus else "No engine runs here."
    todo = (
        "Start one: vLLM, SGLang, TensorRT-LLM and Dynamo are found as they start;",
        "or let this daemon launch them: `disagg-node start -c FILE`.",
        "`disagg-node doctor` says what was looked for and where.",
    )
    return [(Span(what, "warning"),), *((Span(f"  {line}"),) for line in todo)]
