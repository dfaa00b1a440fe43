"""`disagg-node backtest`: how accurate forecasts of a load would have been."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.planning.forecast import horizons_option
from disagg_cluster.cli.planning.load_source import LoadSource, source_options
from disagg_cluster.cli.planning.plot_option import plot_option, print_plot
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.planner.outlook.horizons import ORIGINS

if TYPE_CHECKING:
    from disagg_cluster.planner.history.load_history import LoadHistory
    from disagg_cluster.planner.history.load_series import LoadSeries
    from disagg_cluster.planner.outlook.back_test import HorizonScore
    from disagg_cluster.planner.outlook.model_outlook import UndecidedHorizon
    from disagg_exporter.model import Phase


@click.command
@source_options
@horizons_option
@click.option(
    "--moments",
    type=click.IntRange(4, 1000),
    default=ORIGINS,
    show_default=True,
    help="Number of past moments to forecast from; each takes some 0.2 s per model and phase.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@plot_option("errors over the horizon")
def backtest(
    source: LoadSource,
    horizons_seconds: tuple[float, ...],
    moments: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Repeat forecasts from past moments, with the data of that time, and report their errors.

    For the time between each horizon and the one before: ERROR is the sum of the median's errors
    divided by the actual load, next to that of repeating the last value; LOSS is the pinball loss
    of all quantiles relative to the last value with the quantiles of its own errors (below 1 is
    better); IN BAND is how often the load was between the lowest and the highest quantile.

    \b
      disagg-node backtest --csv load.csv --plot errors.svg
      disagg-node backtest --prometheus http://prometheus:9090 --model llama --since 4w
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.host.spans import timestamp
    from disagg_cluster.planner.outlook.back_test_figure import draw_back_test
    from disagg_cluster.planner.outlook.values import back_test_value
    from disagg_cluster.planner.outlook.wording import back_test_text

    progress = Progress()
    now_seconds = time.time()
    tested = [
        (history.key, _scores(history, horizons_seconds, moments, progress))
        for history in source.read(now_seconds, progress)
    ]
    progress.end()
    if as_json:
        whole = {
            "made_at": timestamp(now_seconds),
            "source": source.name,
            "models": [back_test_value(key, phases) for key, phases in tested],
        }
        click.echo(json.dumps(whole, indent=2, allow_nan=False))
    else:
        click.echo("\n\n".join(back_test_text(key, phases) for key, phases in tested))
    if plot is not None:
        draw_back_test(tested, plot)
        print_plot(plot, len(tested))


def _scores(
    history: LoadHistory, horizons_seconds: tuple[float, ...], moments: int, progress: Progress
) -> list[tuple[Phase, tuple[HorizonScore | UndecidedHorizon, ...]]]:
    from disagg_cluster.planner.outlook.back_test import back_test
    from disagg_cluster.planner.outlook.wording import named
    from disagg_exporter.model import Phase

    def scored(phase: Phase, series: LoadSeries) -> tuple[HorizonScore | UndecidedHorizon, ...]:
        def say(done: int, of: int) -> None:
            progress.say(f"{named(history.key)}, {phase}: {done} of {of}")

        return back_test(series, horizons_seconds, moments, say=say)

    return [
        (Phase.PREFILL, scored(Phase.PREFILL, history.prompt_tokens)),
        (Phase.DECODE, scored(Phase.DECODE, history.output_tokens)),
    ]
