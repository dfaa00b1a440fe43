"""`disagg-node separation`: whether separating prefill from decode would pay, or merging."""

from __future__ import annotations

import json
from pathlib import Path

import click

from disagg_cluster.cli.planning.load_source import LoadSource, source_options
from disagg_cluster.cli.planning.plan import FACTOR, config_option, json_option
from disagg_cluster.cli.planning.planned_load import read_planned_load
from disagg_cluster.cli.planning.progress import Progress


@click.command
@source_options
@config_option
@json_option
@click.option(
    "--gpus",
    type=click.IntRange(1, 100_000),
    help="Ask about so many GPUs, however they would be run.  [default: those that run]",
)
@click.option(
    "--load",
    "load_factor",
    type=FACTOR,
    default=1.0,
    help="Hold so many times the requests against what both ways take.",
)
def separation(
    source: LoadSource, file: Path, as_json: bool, gpus: int | None, load_factor: float
) -> None:
    """Say whether engines should be mixed or separate: on the same GPUs, at the same targets.

    For engines that run mixed today, whether a prefill and a decode pool would take more, how
    much more, and which; for pools that are separate, whether mixed engines would. For requests
    as they were in the last day. Where it is not sure, or something is not known, the verdict is
    undecided, and says what is missing.

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
