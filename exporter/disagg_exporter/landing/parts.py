"""Parts of the page other than its tables: the pools with their verdict, the last hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape

from disagg_exporter.landing.charts import area, line
from disagg_exporter.landing.pools import ModelPools, PoolRow
from disagg_exporter.landing.problems import time_text
from disagg_exporter.landing.served import WINDOW_SECONDS, ServedRates
from disagg_exporter.landing.tables import ABSENT, percent
from disagg_exporter.landing.view import NodeView
from disagg_exporter.model.counted import counted

_AREA_HEIGHT = 150
_LINE_HEIGHT = 32


def pools_part(view: NodeView) -> str:
    """Return the verdict on the pools in words, then how full they are."""
    title = '<h2 id="pools-title">Pools</h2>'
    if not view.pools:
        return f'{title}<p class="words">No engine of a known role serves.</p>'
    several = len(view.pools) > 1
    return title + "".join(_model(each, several) for each in view.pools)


def _model(model: ModelPools, several: bool) -> str:
    name = "/".join(filter(None, (model.namespace, model.model_name))) or "model not known"
    whose = f'<span class="name">{escape(name)}:</span> ' if several else ""
    verdict = "; ".join(model.verdicts) or "how full they are is not learned yet"
    items = "".join(f"<li>{_pool(pool)}</li>" for pool in model.pools)
    return f'<p class="verdict">{whose}{escape(verdict)}</p><ul class="pools">{items}</ul>'


def gpus_text(gpus: float) -> str:
    """Return a number of GPUs in words; slices of one are fractions."""
    return "1 GPU" if gpus == 1 else f"{gpus:.3g} GPUs"


def _pool(pool: PoolRow) -> str:
    engines = counted(pool.engines, "engine")
    used = pool.used_ratio
    meter = ""
    if used is not None:
        width = min(100.0, 100 * used)
        full = " full" if used > 0.95 else ""
        meter = (
            f'<svg class="bar meter" width="100%" height="10" aria-hidden="true" '
            f'focusable="false"><rect class="{pool.role.value}{full}" width="{width:.1f}%" '
            'height="100%"/></svg>'
        )
    used_text = (
        f"{percent(used)} of capacity used" if used is not None else "capacity not learned yet"
    )
    return (
        f'<b class="role {pool.role.value}">{pool.role.value}</b> <span>{used_text}</span> '
        f'<span class="name">{engines}, {gpus_text(pool.gpus)}</span>{meter}'
    )


def hour_part(view: NodeView) -> str:
    """Return the node's time over the last hour, and what users received."""
    title = '<h2 id="hour-title">The last hour</h2>'
    bins = view.hour
    if bins is None:
        return f'{title}<p class="words">It begins with the daemon: nothing to show yet.</p>'
    now = view.taken_timestamp_seconds
    begin = now - (bins.end_seconds - bins.begin_seconds)
    span = time_text(bins.end_seconds - bins.begin_seconds)
    return (
        f'{title}<p class="when">{span}, GPU time of the node by use.</p>'
        f"{area(bins, _AREA_HEIGHT)}"
        f'<p class="axis"><span>{_clock(begin)}</span><span>{_clock(now)} UTC</span></p>'
        f"{_served(view.served)}"
    )


def _clock(timestamp_seconds: float) -> str:
    return time.strftime("%H:%M", time.gmtime(timestamp_seconds))


def _served(rates: Sequence[ServedRates]) -> str:
    """Return requests, tokens and waits of the last minute, each with the last hour behind it."""
    if not rates:
        return ""
    tiles: tuple[tuple[str, Callable[[ServedRates], float | None], str], ...] = (
        ("Requests arriving", lambda rate: rate.arrivals_per_second, "/s"),
        ("Prompt tokens", lambda rate: rate.prompt_tokens_per_second, "/s"),
        ("Output tokens", lambda rate: rate.output_tokens_per_second, "/s"),
        ("First token, p95", lambda rate: rate.first_token_p95_seconds, "s"),
        ("Between tokens, mean", lambda rate: rate.between_tokens_mean_seconds, "s"),
    )
    items = []
    for name, read, unit in tiles:
        values = [read(rate) for rate in rates]
        items.append(
            f"<div><dt>{name}</dt><dd><b>{_amount(values[-1], unit)}</b>"
            f"{line(values, _LINE_HEIGHT)}</dd></div>"
        )
    return (
        f'<p class="when">What users got, over the last {WINDOW_SECONDS:.0f} s.</p>'
        f'<dl class="tiles served">{"".join(items)}</dl>'
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ABSENT
    if unit == "s":
        return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.3g}{unit}" if value < 1000 else f"{value / 1000:.3g}k{unit}"
