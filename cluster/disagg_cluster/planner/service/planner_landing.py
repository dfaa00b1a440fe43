"""The planner's HTML page: bottlenecks, the plan, forecasts, and why some are undecided.

Everything from outside (names of models and namespaces) is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files

import disagg_exporter
from disagg_cluster.planner.advice.plan_text import plan_text
from disagg_cluster.planner.diagnose.words.diagnosis_text import diagnoses_text
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.model_outlook import (
    ModelOutlook,
    PhaseOutlook,
    UndecidedHorizon,
)
from disagg_cluster.planner.outlook.wording import amount, clock, named
from disagg_cluster.planner.rebalance.limits import RebalanceMode
from disagg_cluster.planner.rebalance.rebalance_text import rebalance_text
from disagg_cluster.planner.service.planner_state import DiagnosisRound, PlannerState

_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="60">
<title>{name}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/landing.css">
</head>
<body>
<header>
<h1>{name}</h1>
<p class="about">The load to come and what holds it back, by disagg-node {version}</p>
<p class="refresh">{clock}</p>
</header>
<main>
{main}</main>
<footer>
<h2>More</h2>
<ul id="links">
<li><a href="/metrics">/metrics</a>: the same for Prometheus</li>
<li><a href="/healthz">/healthz</a>: whether the planner itself is alive{health}</li>
<li><a href="/readyz">/readyz</a>: whether it has looked ahead{readiness}</li>
<li>What the words mean: docs/planner.md, docs/diagnosis.md; every metric: docs/metrics.md</li>
</ul>
</footer>
</body>
</html>
"""


class PlannerLanding:
    """Renders the page.

    Args:
        name: Title of the page.
        state: Returns the present state.
        now_ns: The clock of `fresh_until_ns`.
    """

    script = b""

    def __init__(
        self, name: str, state: Callable[[], PlannerState], now_ns: Callable[[], int]
    ) -> None:
        self._name = name
        self._state = state
        self._now_ns = now_ns
        self.style = files("disagg_exporter.landing").joinpath("landing.css").read_bytes()

    def page(self, why_dead: str, why_not_ready: str) -> str:
        """Render the page; the two reasons are empty if the planner is alive and ready."""
        state = self._state()
        made = state.made_seconds
        return _FRAME.format(
            name=escape(self._name),
            version=escape(disagg_exporter.__version__),
            clock="Nothing was forecast yet." if made is None else f"As of {clock(made)} UTC.",
            main="".join(self._main(state)),
            health=escape(f" (no: {why_dead})" if why_dead else " (yes)"),
            readiness=escape(f" (no: {why_not_ready})" if why_not_ready else " (yes)"),
        )

    def _main(self, state: PlannerState) -> Iterator[str]:
        failing = [each.collector for each in state.collectors if not each.success]
        if failing:
            names = escape(", ".join(failing))
            yield f"<p><strong>Failing: {names}.</strong> The log says why.</p>\n"
        if state.diagnosis.made_seconds is not None:
            yield self._bottlenecks(state.diagnosis)
        if state.made_seconds is not None and self._now_ns() > state.fresh_until_ns:
            yield "<p>What was forecast is too old to be shown.</p>\n"
            return
        if state.plan is not None:
            cluster = next((each.key.cluster for each in state.outlooks), "")
            yield _words("GPUs", plan_text(state.plan, cluster, state.past))
        if (latest := state.rebalance) is not None and latest.mode is not RebalanceMode.OFF:
            words = rebalance_text(latest.models, latest.limits, latest.mode)
            yield _words("Roles of engines", words)
        for outlook in state.outlooks:
            yield _model(outlook)

    def _bottlenecks(self, round_: DiagnosisRound) -> str:
        if self._now_ns() > round_.fresh_until_ns:
            return "<p>What was diagnosed is too old to be shown.</p>\n"
        text = diagnoses_text(round_.diagnoses) or "No engine says which model it serves."
        return _words("What holds first tokens back", text)


def _words(title: str, text: str) -> str:
    """Text exactly as the command prints it."""
    return (
        f'<section><h2>{title}</h2><div class="scroll"><pre>{escape(text)}</pre></div></section>\n'
    )


def _model(outlook: ModelOutlook) -> str:
    quantiles = outlook.phases[0].quantiles
    head = ("Phase", "Horizon", "At (UTC)", *(f"{100 * each:g} %" for each in quantiles))
    cells = "".join(f'<th scope="col">{each}</th>' for each in head)
    rows = "".join(row for phase in outlook.phases for row in _rows(phase))
    return (
        f"<section><h2>{escape(named(outlook.key))}</h2><p>Tokens/s</p>"
        f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></section>\n"
    )


def _rows(phase: PhaseOutlook) -> Iterator[str]:
    for each in phase.horizons:
        ahead = duration(each.horizon_seconds)
        head = f'<tr><th scope="row">{phase.phase.value}</th><td>{ahead}</td>'
        if isinstance(each, UndecidedHorizon):
            why = escape(each.why)
            yield f'{head}<td colspan="{1 + len(phase.quantiles)}">undecided: {why}</td></tr>'
        else:
            loads = "".join(f"<td>{amount(load)}</td>" for load in each.tokens_per_second)
            yield f"{head}<td>{clock(each.at_seconds)}</td>{loads}</tr>"
