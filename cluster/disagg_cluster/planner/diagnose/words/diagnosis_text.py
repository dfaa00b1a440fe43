"""A diagnosis as text in 80 columns: verdict, evidence, action, and time by part."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    DiagnosisOutcome,
    ModelDiagnosis,
    RemedyKind,
)
from disagg_cluster.planner.diagnose.words.ttft_bars import Paint, plain, ttft_bars
from disagg_cluster.planner.diagnose.words.vocabulary import (
    CAUSES,
    duration_words,
    looked_at_words,
    whose_words,
)
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.wording import named
from disagg_exporter.errors import escaped
from disagg_exporter.model.counted import counted

_WIDTH = 80


_ORDER = (DiagnosisOutcome.FOUND, DiagnosisOutcome.UNDECIDED, DiagnosisOutcome.NO_BOTTLENECK)


def diagnoses_text(diagnoses: Sequence[ModelDiagnosis], paint: Paint = plain) -> str:
    """All models: the costliest bottleneck first, then undecided ones, then those without any.

    A model without a bottleneck has its bars only if it is the only model.
    """
    ranked = sorted(diagnoses, key=_costliest_first)
    return "\n\n".join("\n".join(_model(each, paint, len(ranked) == 1)) for each in ranked)


def _costliest_first(diagnosis: ModelDiagnosis) -> tuple[int, float]:
    worst = max((each.ttft_cost_seconds for each in diagnosis.findings), default=0.0)
    return _ORDER.index(diagnosis.outcome), -worst


def _model(diagnosis: ModelDiagnosis, paint: Paint, alone: bool) -> Iterator[str]:
    key = diagnosis.model
    whose = named(LoadKey(key.cluster, key.model_name, key.engine_namespace))
    yield from _wrapped(f"{whose}: {_verdict(diagnosis)}")
    if diagnosis.outcome is DiagnosisOutcome.UNDECIDED:
        yield from _wrapped(diagnosis.text, "  ")
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _finding(number, finding)
    if diagnosis.outcome is DiagnosisOutcome.NO_BOTTLENECK:
        roles = [each.role for each in diagnosis.parts if each.engine is not None]
        parts = [part for each in diagnosis.parts for part, _ in each.observed_seconds]
        if looked_at := looked_at_words(roles, parts):
            yield from _wrapped(f"looked at: {looked_at}", "  ")
    for suspect in diagnosis.suspects:
        yield from _suspect(suspect)
    if diagnosis.missing:
        # A footnote to a decision; without one, the way to get there.
        undecided = diagnosis.outcome is DiagnosisOutcome.UNDECIDED
        yield "  missing:" if undecided else "  not known here:"
        for each in diagnosis.missing:
            yield from _wrapped(f"* {each}", "    ", "      ")
    if diagnosis.outcome is DiagnosisOutcome.NO_BOTTLENECK and not alone:
        return
    blamed = {engine for finding in diagnosis.findings for engine in finding.engines}
    yield from ttft_bars(diagnosis.parts, blamed, paint)


def _verdict(diagnosis: ModelDiagnosis) -> str:
    match diagnosis.outcome:
        case DiagnosisOutcome.FOUND:
            return counted(len(diagnosis.findings), "bottleneck")
        case DiagnosisOutcome.NO_BOTTLENECK:
            return "no bottleneck"
        case DiagnosisOutcome.UNDECIDED:
            return "undecided"


def _finding(number: int, finding: BottleneckFinding) -> Iterator[str]:
    whose = whose_words(finding.role, finding.engines, finding.cause)
    yield from _wrapped(f"{number}. {CAUSES[finding.cause]}: {whose}", "", "   ")
    cost = f"adds {duration_words(finding.ttft_cost_seconds)} to the mean time to first token"
    if finding.engines:
        own = duration_words(finding.engine_cost_seconds)
        several = "this engine" if len(finding.engines) == 1 else "these engines"
        cost = f"{cost}, {own} to that of {several}"
    sure = f"confidence {finding.confidence:.0%}, since {_clock(finding.since_seconds)} UTC"
    yield from _wrapped(f"{cost}; {sure}", "   ")
    for each in finding.evidence:
        yield from _wrapped(f"* {each.text}", "   ", "     ")
    if (other := finding.alternative) is not None:
        yield from _wrapped(f"or: {CAUSES[other.cause]} ({other.text})", "   ", "       ")
    yield from _wrapped(f"do: {_remedy(finding)}", "   ", "       ")
    yield f"   more: docs/causes/{finding.cause.value}.md"


def _suspect(finding: BottleneckFinding) -> Iterator[str]:
    """A cause that may still be chance: where to look, without an action."""
    why = f" ({finding.evidence[0].text})" if finding.evidence else ""
    whose = whose_words(finding.role, finding.engines, finding.cause)
    yield from _wrapped(
        f"suspected, not beyond chance yet: {CAUSES[finding.cause]}: {whose}{why}", "  ", "    "
    )


def _remedy(finding: BottleneckFinding) -> str:
    remedy = finding.remedy
    kind = "" if remedy.kind is RemedyKind.NONE else f" ({_action(finding)})"
    gain = remedy.ttft_gain_seconds
    saves = "" if gain is None else f"; would save {duration_words(gain)}"
    return f"{remedy.text}{kind}{saves}"


def _action(finding: BottleneckFinding) -> str:
    value = finding.remedy.value
    return finding.remedy.kind.value + ("" if value is None else f" {value:,}")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M")


def _wrapped(text: str, first: str = "", further: str | None = None) -> list[str]:
    """A wrapped paragraph; words longer than a line are not broken.

    It may quote names of engines and nodes, which a terminal must not obey.
    """
    return textwrap.wrap(
        escaped(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=first if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )
