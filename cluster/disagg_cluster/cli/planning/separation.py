"""`disagg-node separation`: whether separating prefill from decode, or merging them, would pay."""

from __future__ import annotations

import json
from pathlib import Path

import click

from disagg_cluster.cli.planning.load_source import LoadSource, planned_source_options
from disagg_cluster.cli.planning.plan import FACTOR, config_option, json_option
from disagg_cluster.cli.planning.planned_load import read_planned_load
from disagg_cluster.cli.planning.progress import Progress


@click.command
@planned_source_options
@config_option
@json_option
@click.option(
    "--gpus",
    type=click.IntRange(1, 100_000),
    help="Compare for this many GPUs, however they are used now.  [default: those that run]",
)
@click.option(
    "--load",
    "load_factor",
    type=FACTOR,
    default=1.0,
    help="Compare at this multiple of the current requests.",
)
def separation(
    source: LoadSource, file: Path, as_json: bool, gpus: int | None, load_factor: float
) -> None:
    """Compare mixed and separate engines: on the same GPUs, at the same targets.

    For engines that run mixed today, whether a prefill and a decode pool would serve more, how
    much more, and which pools; for separate pools, whether mixed engines would. Uses the requests
    of the last day. If the result is uncertain or data is missing, the verdict is undecided and
    names what is missing.

    \b
      disagg-node separation -c planner.yaml
      disagg-node separation -c planner.yaml --csv load.csv --gpus 16
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.planner.advice.separation_advice import SeparationAdvisor
    from disagg_cluster.planner.advice.separation_text import separation_text
    from disagg_cluster.planner.advice.separation_values import separation_value
    from disagg_cluster.planner.settings.planner_file import read_planner_file

    config = read_planner_file(file)
    progress = Progress()
    load = read_planned_load(source, config, progress)
    engines, interference = load.source.engines_and_interference(load.read_seconds)
    advisor = SeparationAdvisor(config, engines, interference, gpus, load_factor)
    found = []
    for number, history in enumerate(load.histories, 1):
        progress.say(f"comparing: model {number} of {len(load.histories)}")
        found.append(advisor.advise(history))
    progress.end()
    if as_json:
        made = separation_value(found, load.now_seconds)
        click.echo(json.dumps(made, indent=2, allow_nan=False))
    else:
        click.echo(separation_text(found))
