"""`disagg-node plan` and `whatif`: how many GPUs each phase needs, when, and why."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from disagg_cluster.cli.planning.forecast import check_plot
from disagg_cluster.cli.planning.load_source import LoadSource, Progress, source_options
from disagg_cluster.planner.advice.cluster_plan import (
    check_one_cluster,
    cluster_plan,
    load_factors,
)
from disagg_cluster.planner.advice.demands import AS_IT_IS, ClusterEngines, DemandBuilder, LoadScale
from disagg_cluster.planner.advice.plan_figure import draw_plan
from disagg_cluster.planner.advice.plan_text import change_text, plan_text
from disagg_cluster.planner.advice.plan_values import plan_value
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.plan.gpu_plan import GpuPlan
from disagg_cluster.planner.settings.planner_file import PlannerConfig, read_planner_file

config_option = click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The planner file: targets, workers, GPUs that can be had and their prices.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.command
@source_options
@config_option
@json_option
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw GPUs needed against those that are there: a .svg or .png file.",
)
def plan(source: LoadSource, file: Path, as_json: bool, plot: Path | None) -> None:
    """Say how many GPUs each phase needs at each horizon, what to do when, and why.

    From the load to come, the capacity of engines at the targets and what may be used. Without
    another source the history is that of the Prometheus that the planner file names. What cannot
    be said is undecided, with the reason; nothing is recommended without why, and how wrong
    forecasts of it were lately.

    \b
      disagg-node plan -c planner.yaml
      disagg-node plan -c planner.yaml --csv load.csv --plot plan.svg
    """  # noqa: D301 # click looks for the character itself
    if plot is not None:
        check_plot(plot)
    config = read_planner_file(file)
    made = _Planning(source, config)
    found = made.plan(AS_IT_IS)
    click.echo(
        json.dumps(plan_value(found), indent=2) if as_json else plan_text(found, made.cluster)
    )
    if plot is not None:
        draw_plan(found, plot)
        click.echo(plot, err=True)


class _Number(click.FloatRange):
    """One within a range; NaN, which no bound keeps out, is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


_FACTOR = _Number(min=0, max=1000, min_open=True)


@click.command
@source_options
@config_option
@json_option
@click.option("--requests-factor", type=_FACTOR, default=1.0, help="So many times the requests.")
@click.option("--prompt-factor", type=_FACTOR, default=1.0, help="Prompts so many times as long.")
@click.option("--output-factor", type=_FACTOR, default=1.0, help="Outputs so many times as long.")
@click.option(
    "--hit-rate",
    type=_Number(0, 1, max_open=True),
    help="So much of each prompt is found in a cache, instead of what is found now.",
)
@click.option(
    "--with",
    "other",
    type=click.Path(path_type=Path),
    help="Another planner file: other GPUs, other engines, other targets.",
)
def whatif(
    source: LoadSource,
    file: Path,
    as_json: bool,
    requests_factor: float,
    prompt_factor: float,
    output_factor: float,
    hit_rate: float | None,
    other: Path | None,
) -> None:
    """Plan once as things are and once as they might be, and show both beside each other.

    \b
      disagg-node whatif -c planner.yaml --prompt-factor 2
      disagg-node whatif -c planner.yaml --with h200.yaml --csv load.csv
    """  # noqa: D301 # click looks for the character itself
    config = read_planner_file(file)
    if_config = config if other is None else read_planner_file(other)
    made = _Planning(source, config)
    scale = LoadScale(requests_factor, prompt_factor, output_factor, hit_rate)
    before = made.plan(AS_IT_IS)
    after = made.plan(scale, if_config)
    if as_json:
        factors: Mapping[str, object] = load_factors(scale)
        whole = {"if": factors, "now": plan_value(before), "then": plan_value(after)}
        click.echo(json.dumps(whole, indent=2))
    else:
        click.echo(change_text(before, after, made.cluster))


class _Planning:
    """What both commands read once."""

    def __init__(self, source: LoadSource, config: PlannerConfig) -> None:
        self._config = config
        files = (source.csv, source.request_log)
        if source.url is None and not any(files):
            told = config.prometheus
            of_file = None if told.http_config is None else Path(told.http_config)
            source = replace(
                source,
                url=told.url,
                http_config=source.http_config or of_file,
                cluster=source.cluster or config.cluster,
            )
        self._progress = Progress()
        self._now_seconds = time.time()
        model = source.model
        if any(files):
            source = replace(source, model=None)
        self._histories: list[LoadHistory] = source.read(self._now_seconds, self._progress)
        check_one_cluster(self._histories)
        self._engines: ClusterEngines = source.engines(self._now_seconds)
        if any(files):
            # A file's present is where it ends.
            ends = [each.prompt_tokens.end_seconds for each in self._histories]
            self._now_seconds = max(ends)
            key = _key_of_file(config, model)
            self._histories = [replace(each, key=key) for each in self._histories]

    @property
    def cluster(self) -> str:
        """Whose load it is; empty where nobody says."""
        return self._histories[0].key.cluster

    def plan(self, scale: LoadScale, config: PlannerConfig | None = None) -> GpuPlan:
        """Plan as things are, or as they might be."""
        used = config or self._config
        builder = DemandBuilder(used)
        self._progress.say("planning")
        try:
            return cluster_plan(
                builder, used, self._histories, self._engines, self._now_seconds, scale
            )
        finally:
            self._progress.end()


def _key_of_file(config: PlannerConfig, model: str | None) -> LoadKey:
    """Whose load a file is, which does not say so: the model that is named, or the only one."""
    of_any = [each for each in config.models if not each.model_name]
    fitting = [each for each in config.models if model in (None, each.model_name)]
    if not config.models or (of_any and model is None):
        return LoadKey()
    if len(fitting) == 1 or (fitting and model is not None):
        return LoadKey("", fitting[0].model_name, fitting[0].engine_namespace or "")
    there = ", ".join(repr(each.model_name) for each in config.models)
    raise click.UsageError(
        f"a file does not say of which model its load is: --model names one of {there}"
        if model is None
        else f"the planner file knows no model {model!r}; it knows {there}"
    )
