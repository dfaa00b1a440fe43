"""`disagg-node forecast`: the future load of each model and phase, with bands and trend."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from disagg_cluster.cli.planning.load_source import (
    LoadSource,
    source_options,
    spans,
)
from disagg_cluster.cli.planning.plot_option import plot_option, print_plot
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.planner.outlook.horizons import HORIZONS_SECONDS, duration

horizons_option = click.option(
    "--horizons",
    "horizons_seconds",
    callback=spans,
    metavar="SPAN,…",
    default=",".join(map(duration, HORIZONS_SECONDS)),
    show_default=True,
    help="How far ahead.",
)


@click.command
@source_options
@horizons_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@plot_option("the load and its bands")
def forecast(
    source: LoadSource, horizons_seconds: tuple[float, ...], as_json: bool, plot: Path | None
) -> None:
    """Forecast the load of prefill and decode for each model, with its trend.

    Tokens a second in the minute at each horizon: the load that is not exceeded with a probability
    of 5, 50, 90 and 95 %. If the history is too short or too sparse, the result is undecided, with
    the reason. Without a file the history is read from a Prometheus.

    \b
      disagg-node forecast --prometheus http://prometheus:9090 --cluster east
      disagg-node forecast --csv load.csv --plot load.svg
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.host.spans import timestamp
    from disagg_cluster.planner.forecast.load_forecast import QUANTILES
    from disagg_cluster.planner.outlook.figure import draw
    from disagg_cluster.planner.outlook.model_outlook import model_outlook
    from disagg_cluster.planner.outlook.values import outlook_value
    from disagg_cluster.planner.outlook.wording import named, outlook_text

    progress = Progress()
    now_seconds = time.time()
    histories = source.read(now_seconds, progress)
    outlooks = []
    for history in histories:
        progress.say(f"forecasting {named(history.key)}")
        outlooks.append(model_outlook(history, horizons_seconds))
    progress.end()
    if as_json:
        whole = {
            "made_at": timestamp(now_seconds),
            "source": source.name,
            "quantiles": list(QUANTILES),
            "models": [outlook_value(each) for each in outlooks],
        }
        click.echo(json.dumps(whole, indent=2, allow_nan=False))
    else:
        click.echo("\n\n".join(map(outlook_text, outlooks)))
    if plot is not None:
        draw(outlooks, plot)
        print_plot(plot, len(outlooks))
