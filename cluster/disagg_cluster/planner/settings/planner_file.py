"""The planner file: where the past is, and where to listen.

All its problems are told at once, each with its line, as those of a node file are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from disagg_cluster.config import Listen
from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.config.values import HookUrl, PathText, Seconds, Section, Text
from disagg_cluster.nodefile.draft import validated
from disagg_cluster.nodefile.yaml_positions import read_yaml_file

_DAY_SECONDS = 86_400.0
DEFAULT_PORT = 9848


class PrometheusSection(Section):
    """Where the past is read."""

    url: HookUrl = Field(
        default="http://127.0.0.1:9090", description="an address such as http://prometheus:9090"
    )
    http_config: PathText | None = Field(
        default=None, description="the path of an HTTP config file, as promtool takes it"
    )


class HistorySection(Section):
    """How much of the past, and how fine."""

    days: Annotated[float, Field(ge=0.1, le=90)] = Field(
        default=14.0, description="days, a number from 0.1 to 90"
    )
    step_seconds: Annotated[float, Field(ge=15, le=3600)] = Field(
        default=60.0, description="seconds, a number from 15 to 3600"
    )

    @property
    def seconds(self) -> float:
        """How far back."""
        return self.days * _DAY_SECONDS


class PlannerConfig(Section):
    """A whole planner file."""

    cluster: Text | None = Field(default=None, description="the name of the cluster, text")
    prometheus: PrometheusSection = PrometheusSection()
    history: HistorySection = HistorySection()
    listen: Listen = Listen(metrics=f"0.0.0.0:{DEFAULT_PORT}")
    every_seconds: Annotated[Seconds, Field(ge=10)] = Field(
        default=300.0, description="seconds, a number from 10 up"
    )
    lock_file: PathText | None = Field(
        default=None, description="the path of a file that one planner locks"
    )


def read_planner_file(path: Path) -> PlannerConfig:
    """Read a planner file; paths in it count from its own folder.

    Raises:
        ConfigError: It cannot be used; all its problems are in the error.
    """
    document = read_yaml_file(path)
    findings: list[Finding] = list(document.findings)
    raw = {} if document.value is None and not findings else document.value
    config: PlannerConfig | None = None
    if raw is not None:
        _, config, _ = validated(raw, PlannerConfig, findings, path.absolute().parent)
    if findings or config is None:
        raise config_error(findings, str(path), document.lines)
    return config
