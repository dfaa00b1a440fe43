"""A comparison as text and a table, no wider than a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.host.columns import columns
from disagg_cluster.planner.compare.comparison import Comparison, UnknownMeasure
from disagg_cluster.planner.compare.matching import UndecidedComparison
from disagg_cluster.planner.outlook.wording import clock

Times = tuple[float, float]
"""Begin and end of a span, Unix times."""

MEASURE_WORDS: Mapping[str, str] = {
    "tokens_per_gpu_second": "tokens/s/GPU",
    "output_tokens_per_gpu_second": "output tokens/s/GPU",
    "time_to_first_token_p95_seconds": "TTFT p95, s",
    "inter_token_latency_mean_seconds": "ITL mean, s",
    "joules_per_million_tokens": "J per million tokens",
}
_SHORT = {"no sure difference": "unsure"}


def comparison_text(found: Comparison | UndecidedComparison, before: Times, after: Times) -> str:
    """The spans, their matched shares, and a line for each measure."""
    lines = [
        f"{name}: {clock(begin)} to {clock(end)} UTC"
        for name, (begin, end) in (("before", before), ("after", after))
    ]
    if isinstance(found, UndecidedComparison):
        return "\n".join([*lines, f"undecided: {found.why}"])
    lines.append(
        "matched: {:.0%} of the minutes before, {:.0%} of those after".format(*found.matched_ratio)
    )
    lines += [f"  {each}" for each in found.unmatched]
    rows: list[tuple[str, ...]] = [("MEASURE", "BEFORE", "AFTER", "CHANGE", "90 % INTERVAL", "")]
    for each in found.measures:
        name = MEASURE_WORDS[each.name]
        if isinstance(each, UnknownMeasure):
            rows.append((name, f"undecided: {each.why}"))
            continue
        interval = f"{_percent(each.low)} to {_percent(each.high)}"
        figures = (f"{each.before:.4g}", f"{each.after:.4g}", _percent(each.change_ratio))
        rows.append((name, *figures, interval, _SHORT.get(each.verdict, each.verdict)))
    return "\n".join([*lines, columns(rows, right=range(1, 5))])


def _percent(ratio: float) -> str:
    return f"{ratio:+.0%}" if abs(ratio) >= 10 else f"{ratio:+.1%}"
