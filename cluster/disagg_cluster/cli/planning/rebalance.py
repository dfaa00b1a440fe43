"""`disagg-node rebalance`: which engine should change its role now, and the expected effect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from disagg_cluster.cli.planning.load_source import LoadSource, planned_source_options
from disagg_cluster.cli.planning.plan import config_option, json_option
from disagg_cluster.cli.planning.progress import Progress


@click.command
@planned_source_options
@config_option
@json_option
def rebalance(source: LoadSource, file: Path, as_json: bool) -> None:
    """Name the engine of each model that should change its role now, why, and what that gains.

    Moves nothing, in any mode of the planner file: `disagg-node reassign` moves a worker by hand,
    the planner service does in mode act. Exit codes: 0 for any advice, 1 for a Prometheus that does
    not answer or holds no load, 2 for a wrong file or option.

    \b
      disagg-node rebalance -c planner.yaml
      disagg-node rebalance -c planner.yaml --csv load.csv --json
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.cli.planning.planned_load import read_planned_load
    from disagg_cluster.planner.advice.demands import DemandBuilder
    from disagg_cluster.planner.rebalance.limits import RebalanceMode
    from disagg_cluster.planner.rebalance.rebalance_text import rebalance_text, rebalance_values
    from disagg_cluster.planner.service.rebalancer import Rebalancer
    from disagg_cluster.planner.settings.planner_file import read_planner_file

    config = read_planner_file(file)
    progress = Progress()
    load = read_planned_load(source, config, progress)
    engines = load.source.engines(load.read_seconds)
    section = config.rebalance.model_copy(update={"mode": RebalanceMode.ADVISE})
    asked = config.model_copy(update={"rebalance": section})
    progress.say("weighing moves")
    try:
        said = Rebalancer(DemandBuilder(asked), asked).run_round(
            load.histories, engines, load.now_seconds
        )
    finally:
        progress.end()
    # `accounting` belongs to the service, which observes the outcome of moves.
    models = [replace(each, accounting=None) for each in said.models]
    if as_json:
        click.echo(json.dumps(rebalance_values(models, said.limits), indent=2, allow_nan=False))
    else:
        click.echo(rebalance_text(models, said.limits, said.mode))
