"""Exporter: whether the other dashboards can be trusted: scrapes, collectors, lag, lost records."""

from __future__ import annotations

from typing import Any

from grafana.builders.exporter.gpu_seconds import J, N, accounting, coverage
from grafana.builders.exporter.known import known_by
from grafana.builders.exporter.pages import collectors, scrapes
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import CLUSTER, Row, board, choice
from grafana.builders.panels.charts import numbers
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.limits import WATERMARK_SECONDS
from grafana.builders.panels.queries import Ask, age, once

NODE = choice("node", "Node", 'label_values(disagg_build_info{cluster=~"$cluster"}, node)')
JOB = choice("job", "Job", "label_values(disagg_build_info, job)", everything=None)

_ENGINE = "cluster, node, engine"


def _now() -> Row:
    return "", [
        numbers(
            "Nodes that answer",
            "Metrics pages that Prometheus could read at its last scrape. Good: all of your nodes.",
            [Ask(f"sum (up{{{J}}})")],
            decimals=0,
            width=QUARTER,
            none="not scraped",
            runbooks=(
                "DisaggNoNodes",
                "DisaggNodesGone",
                "DisaggGpusMissing",
                "DisaggGpusUnread",
                "DisaggScrapeLabelMissing",
                "DisaggNodeScrapedTwice",
            ),
        ),
        numbers(
            "Unreachable nodes",
            "Pages that could not be scraped. Good: 0. Their GPUs are missing from every "
            "dashboard.",
            [Ask(f"count (up{{{J}}} == 0) or 0 * count (up{{{J}}})")],
            decimals=0,
            none="not scraped",
            width=QUARTER,
            steps=((None, "green"), (1, "red")),
            runbooks=("DisaggNodeDown", "DisaggExporterStale", "DisaggDaemonRestarting"),
        ),
        numbers(
            "Failing collectors",
            "Collectors of devices, steps or pages whose last round failed. Good: 0. They are "
            "listed below.",
            [
                Ask(
                    f"count ({once('disagg_collector_success', N)} == 0)"
                    f" or 0 * count (disagg_collector_success{{{N}}})"
                )
            ],
            decimals=0,
            none="not scraped",
            width=QUARTER,
            steps=((None, "green"), (1, "red")),
        ),
        numbers(
            "Watermark lag",
            "Age of the oldest committed GPU-second. Good: below half a minute. More: an engine "
            "is silent or a device cannot be read, and rates lag equally.",
            [Ask(f"max {age('disagg_gpu_watermark_timestamp_seconds', N)}")],
            unit="s",
            decimals=1,
            width=QUARTER,
            steps=((None, "green"), (30, "yellow"), (WATERMARK_SECONDS, "red")),
            none="no GPU visible",
            runbooks=("DisaggWatermarkLag",),
        ),
        numbers(
            "Records lost",
            "Step records that never arrived, in the time shown. Their work is restored from "
            "running totals, with less exact timing. Good: 0.",
            [Ask(f"sum (increase(disagg_lost_records_total{{{N}}}[$__range]))")],
            decimals=0,
            width=QUARTER,
            steps=((None, "green"), (1, "yellow")),
            none="no engine",
            runbooks=("DisaggRecordsLost",),
        ),
        numbers(
            "Simulated nodes",
            "Nodes with simulated devices or engines: none of their values is a measurement. Good "
            "in production: 0.",
            [Ask(f"count ({once('disagg_simulated_info', N)}) or vector(0)")],
            decimals=0,
            width=QUARTER,
            steps=((None, "green"), (1, "yellow")),
        ),
        numbers(
            "Unknown versions",
            "Engines whose metrics page is of a version that we have not checked: its values may "
            "mean something else. Engines that do not report their version are not counted. Good: "
            "0.",
            [Ask(f"count ({once('disagg_engine_version_known', N)} == 0) or vector(0)")],
            decimals=0,
            width=QUARTER,
            steps=((None, "green"), (1, "yellow")),
            runbooks=("DisaggEngineVersionUnknown",),
        ),
        numbers(
            "Not from steps",
            "Engines whose GPU-seconds are estimated from outside, by their page or role, or that "
            "answer and whose time nothing accounts for. Good: 0. Followers, the parts of an "
            "engine that is led from another node, are left out: nothing there can report steps.",
            [Ask(_not_from_steps())],
            decimals=0,
            width=QUARTER,
            steps=((None, "green"), (1, "yellow")),
            runbooks=("DisaggAttributionInexact",),
        ),
    ]


def _not_from_steps() -> str:
    """The number of engines that the alert beside would name, without waiting."""

    def known_by(method: str) -> str:
        return f'max by ({_ENGINE}) (disagg_attribution_info{{{N}, method=~"{method}"}})'

    up = f"max by ({_ENGINE}) (disagg_engine_up{{{N}}}) == 1"
    follower = f"max by ({_ENGINE}) (disagg_engine_follower_info{{{N}}})"
    unknown = f"({known_by('none')} and {up})"
    return f"count (({known_by('page|page_cpu|role')} or {unknown}) unless {follower}) or vector(0)"


def dashboard() -> dict[str, Any]:
    """The dashboard of the exporters themselves."""
    return board(
        "exporter",
        "disagg-node / Exporter health",
        "Whether the other dashboards can be trusted: scrapes, collectors, watermark lag, lost "
        "records, attribution methods.",
        variables=[CLUSTER, NODE, JOB],
        rows=[_now(), known_by(), coverage(), accounting(), collectors(), scrapes()],
        folded=[alerts(N)],
        marks=[marks.alerts(N), marks.daemon_starts(J)],
    )
