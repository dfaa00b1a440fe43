"""SVG charts of the last hour: an area for the node, a sparkline per GPU, lines of requests."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_exporter.landing.history import HourBins
from disagg_exporter.model import Use

_HEIGHT = 100.0
_USES = tuple(Use)
_PHASES = (Use.PREFILL, Use.DECODE)


def area(bins: HourBins, height: int) -> str:
    """Return all uses stacked, from 0 to the whole GPU time, with gaps where nothing is known."""
    return _stacked(bins, _USES, height, "area")


def spark(bins: HourBins, height: int) -> str:
    """Return prefill and decode stacked; the rest of the height is everything else."""
    return _stacked(bins, _PHASES, height, "spark")


def line(values: Sequence[float | None], height: int) -> str:
    """Return a line from 0 to the largest value, broken at unknown ones; empty without data."""
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0 or len(values) < 2:
        return ""
    parts, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{place} {_HEIGHT * (1 - value / top):.1f}")
        pen = "L"
    path = f'<path d="{"".join(parts)}" class="line"/>'
    return _svg(path, len(values) - 1, height, "spark")


def _stacked(bins: HourBins, uses: Sequence[Use], height: int, kind: str) -> str:
    paths = []
    for use in uses:
        place = _USES.index(use)
        below = [_USES.index(each) for each in uses[: uses.index(use)]]
        path = "".join(_bands(bins, place, below))
        if path:
            paths.append(f'<path d="{path}" class="{use.value}"/>')
    return _svg("".join(paths), len(bins.shares), height, kind)


def _bands(bins: HourBins, place: int, below: Sequence[int]) -> list[str]:
    """Return the outline of one use, one for each run of bins in which it is known."""
    outlines: list[str] = []
    top: list[str] = []
    bottom: list[str] = []

    def close() -> None:
        if top:
            outlines.append(f"M{'L'.join((*top, *reversed(bottom)))}Z")
            top.clear()
            bottom.clear()

    for at, shares in enumerate(bins.shares):
        if shares is None or shares[place] <= 0:
            close()
            continue
        low = sum(shares[each] for each in below)
        high = low + shares[place]
        for edge in (at, at + 1):
            top.append(f"{edge} {_HEIGHT * (1 - high):.1f}")
            bottom.append(f"{edge} {_HEIGHT * (1 - low):.1f}")
    close()
    return outlines


def _svg(inside: str, width: int, height: int, kind: str) -> str:
    return (
        f'<svg class="{kind}" width="100%" height="{height}" viewBox="0 0 {max(1, width)} 100"'
        f' preserveAspectRatio="none" aria-hidden="true" focusable="false">{inside}</svg>'
    )
