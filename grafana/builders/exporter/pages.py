"""Rows of the Exporter dashboard: the nodes' collectors, and Prometheus' scrapes of the nodes."""

from __future__ import annotations

from grafana.builders.exporter.gpu_seconds import MOST, J, N
from grafana.builders.panels.board import NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import HALF, THIRD
from grafana.builders.panels.palette import GREEN, RED
from grafana.builders.panels.queries import Ask, age, once
from grafana.builders.panels.tables import Column, rows
from grafana.builders.panels.timelines import states


def collectors() -> Row:
    """Which collectors of devices, steps and pages succeed."""
    return "Collectors", [
        states(
            "Collectors",
            "Whether each collector's last round succeeded, over all chosen nodes: one failing "
            "node makes the row red. Good: green.",
            [
                Ask(
                    f"2 - min by (collector) (disagg_collector_success{{{N}}})",
                    "{{collector}}",
                )
            ],
            {"succeeded": GREEN, "failed": RED},
            none="no node is scraped",
            width=HALF,
            height=14,
            runbooks=(
                "DisaggDevicesUnreadable",
                "DisaggStepsUnheard",
                "DisaggJournalFailing",
                "DisaggCollectorFailing",
            ),
        ),
        rows(
            "Each collector",
            "The worst of the chosen nodes. Bad: an old last success, or a round that takes "
            "nearly as long as the interval between rounds. The journal is written only when a "
            "worker changes, so its last success may be old.",
            [
                Ask(f"min by (collector) (disagg_collector_success{{{N}}})"),
                Ask(f"max by (collector) (disagg_collector_duration_seconds{{{N}}})"),
                Ask(
                    "time() - min by (collector)"
                    f" (disagg_collector_last_success_timestamp_seconds{{{N}}})"
                ),
                Ask(f"count by (collector) ({once('disagg_collector_success', N)})"),
            ],
            [
                Column("collector", "Collector"),
                Column("D", "Nodes", decimals=0, width=80),
                Column(
                    "A",
                    "Last round",
                    texts=(("1", "succeeded", "green"), ("0", "failed", "red")),
                ),
                Column("B", "Took", unit="s", decimals=1),
                Column("C", "Last success was ago", unit="s", decimals=1),
            ],
            none="no node is scraped",
            sort="Collector",
            ascending=True,
            width=HALF,
            height=14,
            runbooks=(
                "DisaggEnginePageUnreadable",
                "DisaggAttachedPageUnreadable",
                "DisaggEngineDown",
                "DisaggUnusedEngineDown",
                "DisaggEngineRestarting",
            ),
        ),
    ]


def scrapes() -> Row:
    """Duration and size of scrapes, and the versions that serve them."""

    def most(metric: str) -> str:
        by_node, told = "max by (cluster, node)", f"{metric}{{{J}}}"
        chosen = f"topk({MOST}, {by_node} (max_over_time({told}[$__range] @ end())))"
        return f"{by_node} ({told}) and on (cluster, node) {chosen}"

    return "Scrapes and versions", [
        lines(
            "Time of a scrape",
            "How long Prometheus waits for a page, the five slowest nodes. Good: milliseconds, as "
            "pages are served from memory. Bad: near the scrape timeout.",
            [Ask(most("scrape_duration_seconds"), "{{node}}")],
            none="this Prometheus does not scrape the nodes itself",
            unit="s",
            decimals=1,
            width=THIRD,
            filled=0,
        ),
        lines(
            "Samples of a scrape",
            "Samples on a page, the five largest nodes. Good: flat, near 1,100 for 8 GPUs and 6 "
            "engines. Growth costs Prometheus memory.",
            [Ask(most("scrape_samples_scraped"), "{{node}}")],
            none="this Prometheus does not scrape the nodes itself",
            width=THIRD,
            filled=0,
        ),
        rows(
            "Versions of disagg-node",
            "How many nodes run each version. Good: one row, or two during a roll-out.",
            [Ask(f"count by (version) ({once('disagg_build_info', N)})")],
            [Column("version", "Version"), Column("A", "Nodes", decimals=0)],
            none="no node is scraped",
            sort="Nodes",
            width=8,
            height=8,
        ),
        rows(
            "Nodes",
            "The 50 nodes with the largest watermark lag. Click a node for its GPUs.",
            [
                Ask(
                    "topk(50, max by (cluster, node)"
                    f" {age('disagg_gpu_watermark_timestamp_seconds', N)})"
                ),
                Ask(f"max by (cluster, node) (scrape_duration_seconds{{{J}}})"),
                Ask(f"min by (cluster, node) (disagg_collector_success{{{N}}})"),
                Ask(f"sum by (cluster, node) ({once('disagg_worker_restarts_total', N)})"),
                Ask(f"sum by (cluster, node) ({once('disagg_lost_records_total', N)})"),
            ],
            [
                Column("cluster", "Cluster"),
                Column("node", "Node", link=NODE_LINK),
                Column("A", "Watermark lag", unit="s", decimals=1),
                Column("B", "Scrape", unit="s", decimals=1),
                Column(
                    "C",
                    "Collectors",
                    texts=(("1", "all succeed", "green"), ("0", "one fails", "red")),
                ),
                Column("D", "Restarts", decimals=0),
                Column("E", "Lost records", decimals=0),
            ],
            none="no GPU is visible",
            sort="Watermark lag",
            height=6,
        ),
    ]
