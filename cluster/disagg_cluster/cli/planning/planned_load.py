"""The past load for a plan, with its cluster and model from the options and the planner file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.planning.load_source import LoadSource
from disagg_cluster.cli.planning.progress import Progress

if TYPE_CHECKING:
    from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
    from disagg_cluster.planner.settings.planner_file import PlannerConfig


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The load, its source, and the Unix times of reading and of the load's present."""

    source: LoadSource
    histories: Sequence[LoadHistory]
    read_seconds: float
    now_seconds: float


def read_planned_load(source: LoadSource, config: PlannerConfig, progress: Progress) -> PlannedLoad:
    """Read the load of one cluster; without a source, from the Prometheus of the planner file.

    The cluster is that of the option, or else of the planner file, whichever Prometheus is read.

    Raises:
        UsageError: The model of a load file is unknown.
        SeveralClustersError: The load is of several clusters.
        DisaggError: As `LoadSource.read`.
    """
    from disagg_cluster.planner.advice.cluster_plan import check_one_cluster

    read_seconds = time.time()
    if source.is_file:
        histories = replace(source, model=None).read(read_seconds, progress)
        key = _key_of_file(config, source.model)
        # The present of a file is its end.
        end_seconds = max(each.prompt_tokens.end_seconds for each in histories)
        of_model = [replace(each, key=key) for each in histories]
        return PlannedLoad(source, of_model, read_seconds, end_seconds)
    source = replace(source, cluster=source.cluster or config.cluster)
    if source.url is None:
        settings = config.prometheus
        of_file = None if settings.http_config is None else Path(settings.http_config)
        source = replace(
            source,
            url=settings.url,
            http_config=source.http_config or of_file,
        )
    histories = source.read(read_seconds, progress)
    check_one_cluster(each.key.cluster for each in histories)
    if source.model is None and (text := unused_text(config, [each.key for each in histories])):
        click.echo(text, err=True)
    return PlannedLoad(source, histories, read_seconds, read_seconds)


def unused_text(config: PlannerConfig, loads: Sequence[LoadKey]) -> str:
    """Name the models of a planner file without load, as where one is misspelt; empty if none."""
    used = [config.of_model(key.model_name, key.engine_namespace) for key in loads]
    unused = [
        _name(section.model_name, section.engine_namespace)
        for section in config.models
        if not any(section is each for each in used)
    ]
    if not unused:
        return ""
    there = sorted({_name(key.model_name, key.engine_namespace) for key in loads})
    return (
        f"the planner file describes {', '.join(unused)}, of which there is no load: that is not "
        f"used; there is load of {', '.join(there)}"
    )


def _name(model_name: str, engine_namespace: str | None) -> str:
    named = repr(model_name) if model_name else "a model without `model_name:`"
    return f"{named} in namespace {engine_namespace!r}" if engine_namespace else named


def _key_of_file(config: PlannerConfig, model: str | None) -> LoadKey:
    """The model of a load file: the one named by option, or the only one in the planner file."""
    from disagg_cluster.planner.history.load_history import LoadKey

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
