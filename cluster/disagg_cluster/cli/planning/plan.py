"""`disagg-node plan` and `whatif`: how many GPUs each phase needs, when, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.number_range import NumberRange
from disagg_cluster.cli.planning.load_source import LoadSource, planned_source_options
from disagg_cluster.cli.planning.planned_load import read_planned_load
from disagg_cluster.cli.planning.plot_option import plot_option, print_plot
from disagg_cluster.cli.planning.progress import Progress

if TYPE_CHECKING:
    from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
    from disagg_cluster.planner.advice.demands import LoadScale
    from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
    from disagg_cluster.planner.advice.separation_advice import ModelSeparation
    from disagg_cluster.planner.history.load_history import LoadKey
    from disagg_cluster.planner.plan.gpu_plan import GpuPlan
    from disagg_cluster.planner.settings.planner_file import PlannerConfig

config_option = click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The planner file: targets, workers, available GPUs and their prices; "
    "docs/planner.md has one.",
)

FACTOR = NumberRange(min=0, max=1000, min_open=True)
"""A factor for a load or a length."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.command
@planned_source_options
@config_option
@json_option
@plot_option("GPUs needed against those that are there")
def plan(source: LoadSource, file: Path, as_json: bool, plot: Path | None) -> None:
    """Plan how many GPUs each phase needs at each horizon, what to do when, and why.

    Combines the forecast load, the capacity of engines at the targets and the available GPUs.
    Without another source the history comes from the Prometheus in the planner file. What cannot be
    determined is undecided, with the reason; each recommendation comes with its reason and with
    how wrong recent forecasts were. Also shows what the current engines would have wasted in the
    last days, the best fixed split for that time, and whether mixed engines should be separate.

    \b
      disagg-node plan -c planner.yaml
      disagg-node plan -c planner.yaml --csv load.csv --plot plan.svg
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.planner.advice.demands import UNSCALED
    from disagg_cluster.planner.advice.plan_figure import draw_plan
    from disagg_cluster.planner.advice.plan_text import plan_text
    from disagg_cluster.planner.advice.plan_values import plan_value
    from disagg_cluster.planner.settings.planner_file import read_planner_file

    config = read_planner_file(file)
    made = _Planning(source, config)
    found = made.plan(UNSCALED)
    beside = made.past(), made.separations()
    if as_json:
        click.echo(json.dumps(plan_value(found, made.cluster, *beside), indent=2, allow_nan=False))
    else:
        click.echo(plan_text(found, made.cluster, *beside))
    if plot is not None:
        draw_plan(found, plot)
        print_plot(plot, len(found.models))


@click.command
@planned_source_options
@config_option
@json_option
@click.option("--requests-factor", type=FACTOR, default=1.0, help="Multiplies the requests.")
@click.option("--prompt-factor", type=FACTOR, default=1.0, help="Multiplies prompt lengths.")
@click.option("--output-factor", type=FACTOR, default=1.0, help="Multiplies output lengths.")
@click.option(
    "--hit-rate",
    type=NumberRange(0, 1, max_open=True),
    help="Share of each prompt found in a cache, instead of the measured one.",
)
@click.option(
    "--with",
    "other",
    type=click.Path(path_type=Path),
    help="Another planner file: other GPUs, other engines, other targets.",
)
@plot_option("GPUs recommended as it is and if it were so")
def whatif(
    source: LoadSource,
    file: Path,
    as_json: bool,
    requests_factor: float,
    prompt_factor: float,
    output_factor: float,
    hit_rate: float | None,
    other: Path | None,
    plot: Path | None,
) -> None:
    """Plan for the current state and for a changed one, and show both side by side.

    \b
      disagg-node whatif -c planner.yaml --prompt-factor 2 --plot twice.svg
      disagg-node whatif -c planner.yaml --with h200.yaml --csv load.csv
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.planner.advice.cluster_plan import load_factors
    from disagg_cluster.planner.advice.demands import UNSCALED, LoadScale
    from disagg_cluster.planner.advice.plan_figure import draw_change
    from disagg_cluster.planner.advice.plan_text import change_text
    from disagg_cluster.planner.advice.plan_values import plan_value
    from disagg_cluster.planner.settings.planner_file import read_planner_file

    config = read_planner_file(file)
    if_config = config if other is None else read_planner_file(other)
    made = _Planning(source, config)
    scale = LoadScale(requests_factor, prompt_factor, output_factor, hit_rate)
    before = made.plan(UNSCALED)
    after = made.plan(scale, if_config)
    if as_json:
        named = None if other is None else str(other)
        assumed: Mapping[str, object] = {**load_factors(scale), "planner_file": named}
        now, then = (plan_value(each, made.cluster) for each in (before, after))
        click.echo(json.dumps({"if": assumed, "now": now, "then": then}, indent=2, allow_nan=False))
    else:
        click.echo(change_text(before, after, scale, str(other or ""), made.cluster))
    if plot is not None:
        draw_change(before, after, plot)
        print_plot(plot, len(after.models))


class _Planning:
    """What `plan` and `whatif` both read once."""

    def __init__(self, source: LoadSource, config: PlannerConfig) -> None:
        from disagg_cluster.planner.advice.demands import DemandBuilder

        self._config = config
        self._builder = DemandBuilder(config)
        self._progress = Progress()
        load = read_planned_load(source, config, self._progress)
        self._histories = load.histories
        self._now_seconds = load.now_seconds
        self._engines: ClusterEngines = load.source.engines(load.read_seconds)

    @property
    def cluster(self) -> str:
        """The cluster of the load; empty if unknown."""
        return self._histories[0].key.cluster

    def plan(self, scale: LoadScale, config: PlannerConfig | None = None) -> GpuPlan:
        """Plan for the current state or a changed one."""
        from disagg_cluster.planner.advice.cluster_plan import cluster_plan
        from disagg_cluster.planner.advice.demands import DemandBuilder

        used = config or self._config
        builder = self._builder if config is None else DemandBuilder(used)
        self._progress.say("planning")
        try:
            return cluster_plan(
                builder, used, self._histories, self._engines, self._now_seconds, scale
            )
        finally:
            self._progress.end()

    def past(self) -> list[PastSplit | UndecidedPastSplit]:
        """What the current engines would have wasted in the past, by model."""
        from disagg_cluster.planner.advice.past_split import past_split

        self._progress.say("looking back")
        try:
            return [
                past_split(self._builder, self._config, each, self._engines)
                for each in self._histories
            ]
        finally:
            self._progress.end()

    def separations(self) -> list[ModelSeparation]:
        """Whether mixed engines should be separate, by model."""
        from disagg_cluster.planner.advice.separation_advice import SeparationAdvisor

        # Interference is left out: it would appear beside the gain without changing it.
        advisor = SeparationAdvisor(self._config, self._engines, {})
        self._progress.say("comparing mixed with separate engines")
        try:
            return [advisor.advise(each) for each in self._histories if self._runs_mixed(each.key)]
        finally:
            self._progress.end()

    def _runs_mixed(self, key: LoadKey) -> bool:
        from disagg_exporter.model import Role

        settings = self._config.of_model(key.model_name, key.engine_namespace)
        return any(
            each.role is Role.MIXED for each in self._engines.of_model_or_file(key, settings)
        )
