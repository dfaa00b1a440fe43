"""The parts of the time to first token as bars of letters, observed above expected, by engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from disagg_cluster.planner.diagnose.verdict.values import EngineKey, EngineParts, TtftPart
from disagg_cluster.planner.diagnose.words.vocabulary import PARTS, duration_words
from disagg_exporter.errors import escaped
from disagg_exporter.model.counted import counted

MOST_ENGINES = 12
LETTERS = {
    TtftPart.ROUTER: "r",
    TtftPart.QUEUE: "q",
    TtftPart.PREFILL: "p",
    TtftPart.KV_TRANSFER: "k",
    TtftPart.FIRST_DECODE: "d",
}
_NAME_WIDTH = 25
_BAR_WIDTH = 33
_LEAST_SECONDS = 1e-6
_ALIKE = 0.05

Paint = Callable[[TtftPart, str], str]
"""Colours the text of one part of a bar."""
Seconds = Sequence[tuple[TtftPart, float]]


def plain(_part: TtftPart, text: str) -> str:
    """No colour: the letters suffice."""
    return text


def ttft_bars(
    parts: Sequence[EngineParts],
    blamed: Collection[EngineKey] = (),
    paint: Paint = plain,
    most: int = MOST_ENGINES,
) -> Iterator[str]:
    """Lines of at most 80 columns: blamed engines first, then those with the largest excess.

    All bars share one scale. Beyond `most` engines the last line says how many are left out.
    """
    known = [each for each in parts if each.observed_seconds]
    if not known:
        return
    there = {part for each in known for part, _ in (*each.observed_seconds, *each.expected_seconds)}
    legend = ", ".join(f"{LETTERS[part]} {PARTS[part]}" for part in TtftPart if part in there)
    yield ""
    yield "Mean time to first token by part, and what was expected where that is less"
    yield f"({legend}):"
    known.sort(key=lambda each: _rank(each, blamed))
    shown = known[:most]
    longest = max(
        max(_total(each.observed_seconds), _total(each.expected_seconds)) for each in shown
    )
    for each in shown:
        name, role = "all requests", ""
        if each.engine is not None:
            name = escaped(f"{each.engine.engine} {each.engine.node}")
            role = each.role.value
        if len(name) > _NAME_WIDTH:
            name = f"{name[: _NAME_WIDTH - 1]}…"
        yield _line(name, role, each.observed_seconds, longest, paint)
        if _excess(each) > _ALIKE * _total(each.observed_seconds):
            yield _line("", "expected", each.expected_seconds, longest, paint)
    if len(known) > most:
        others = counted(len(known) - most, "more engine")
        yield f"  and {others}, less far off (--json has them all)"


def _line(name: str, what: str, seconds: Seconds, longest: float, paint: Paint) -> str:
    total = duration_words(_total(seconds))
    bar = "".join(paint(part, text) for part, text in _stretches(seconds, longest))
    return f"  {name:{_NAME_WIDTH}} {what:8} {total:>8}  {bar}".rstrip()


def _stretches(seconds: Seconds, longest: float) -> Iterator[tuple[TtftPart, str]]:
    """The letters of each part; ends are rounded, so that the bar is as long as its sum."""
    scale = _BAR_WIDTH / max(longest, _LEAST_SECONDS)
    by_part, begin, done = dict(seconds), 0, 0.0
    for part in TtftPart:
        done += max(by_part.get(part, 0.0), 0.0)
        end = round(done * scale)
        if end > begin:
            yield part, LETTERS[part] * (end - begin)
        begin = max(begin, end)


def _total(seconds: Seconds) -> float:
    return sum(max(each, 0.0) for _, each in seconds)


def _rank(parts: EngineParts, blamed: Collection[EngineKey]) -> tuple[bool, bool, float]:
    """Sort key: parts common to all requests, then blamed engines, then the largest excess."""
    return parts.engine is not None, parts.engine not in blamed, -_excess(parts)


def _excess(parts: EngineParts) -> float:
    if not parts.expected_seconds:
        return 0.0
    return _total(parts.observed_seconds) - _total(parts.expected_seconds)
