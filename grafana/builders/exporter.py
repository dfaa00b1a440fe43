"""Exporter: can the other dashboards be believed? Scrapes, collectors, books, lost records."""

from __future__ import annotations

from typing import Any

from grafana.builders.board import CLUSTER, NODE_LINK, Row, board, choice, mark
from grafana.builders.exporter_books import N, books
from grafana.builders.palette import GREEN, RED
from grafana.builders.panels import HALF, THIRD, Ask, lines, numbers, states
from grafana.builders.tables import Column, rows

J = f'{N}, job=~"$job"'
NODE = choice("node", "Node", 'label_values(disagg_build_info{cluster=~"$cluster"}, node)')
JOB = choice("job", "Job", "label_values(disagg_build_info, job)", everything=None)


def _now() -> Row:
    return "", [
        numbers(
            "Nodes that answer",
            "Metrics pages that Prometheus could read at its last try. Good: all of yours.",
            [Ask(f"sum (up{{{J}}})")],
            decimals=0,
        ),
        numbers(
            "Nodes that do not",
            "Pages that could not be read. Good: 0. Their GPUs are in no figure of any dashboard.",
            [Ask(f"count (up{{{J}}} == 0) or vector(0)")],
            decimals=0,
            steps=((None, "green"), (1, "red")),
        ),
        numbers(
            "Failing collectors",
            "Readers of devices, steps or pages whose last round failed. Good: 0; which ones is "
            "below.",
            [Ask(f"count (disagg_collector_success{{{N}}} == 0) or vector(0)")],
            decimals=0,
            steps=((None, "green"), (1, "red")),
        ),
        numbers(
            "Books are behind by",
            "Age of the oldest committed GPU-second. Good: below half a minute. More: an engine is "
            "silent or a device cannot be read, and rates lag by as much.",
            [Ask(f"time() - min (disagg_gpu_watermark_timestamp_seconds{{{N}}})")],
            unit="s",
            decimals=1,
            steps=((None, "green"), (30, "yellow"), (120, "red")),
        ),
        numbers(
            "Records lost",
            "Step records that never came in the time shown. Their work is restored from running "
            "totals, less exactly placed in time. Good: 0.",
            [Ask(f"sum (increase(disagg_lost_records_total{{{N}}}[$__range]))")],
            decimals=0,
            steps=((None, "green"), (1, "yellow")),
        ),
        numbers(
            "Simulated nodes",
            "Nodes on which devices or engines are simulated: nothing of theirs is a measurement. "
            "Good in production: 0.",
            [Ask(f"count (disagg_simulated_info{{{N}}}) or vector(0)")],
            decimals=0,
            steps=((None, "green"), (1, "yellow")),
        ),
    ]


def _collectors() -> Row:
    return "Collectors", [
        states(
            "Collectors",
            "Whether each reader's last round succeeded, on all chosen nodes together: one failing "
            "node makes the row red. Good: green.",
            [
                Ask(
                    f"2 - min by (collector) (disagg_collector_success{{{N}}})",
                    "{{collector}}",
                )
            ],
            {"succeeded": GREEN, "failed": RED},
            width=HALF,
        ),
        rows(
            "Each collector",
            "The worst of the chosen nodes. Bad: a last success that grows old, or a round that "
            "takes nearly as long as the interval between rounds. The journal is written only when "
            "a worker changes, so its last success may be old.",
            [
                Ask(f"min by (collector) (disagg_collector_success{{{N}}})"),
                Ask(f"max by (collector) (disagg_collector_duration_seconds{{{N}}})"),
                Ask(
                    "time() - min by (collector)"
                    f" (disagg_collector_last_success_timestamp_seconds{{{N}}})"
                ),
                Ask(f"count by (collector) (disagg_collector_success{{{N}}})"),
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
            sort="Collector",
            ascending=True,
            width=12,
        ),
    ]


def _scrapes() -> Row:
    return "Scrapes and versions", [
        lines(
            "Time of a scrape",
            "How long Prometheus waits for a page, the ten slowest nodes. Good: milliseconds, as "
            "pages are served from memory. Bad: near the scrape timeout.",
            [Ask(f"topk(10, max by (node) (scrape_duration_seconds{{{J}}}))", "{{node}}")],
            unit="s",
            decimals=1,
            width=THIRD,
            filled=0,
        ),
        lines(
            "Samples of a scrape",
            "Values on a page, the ten largest nodes. Good: flat, near 1,000 for 8 GPUs. A "
            "climb costs Prometheus memory.",
            [Ask(f"topk(10, max by (node) (scrape_samples_scraped{{{J}}}))", "{{node}}")],
            decimals=0,
            width=THIRD,
            filled=0,
        ),
        rows(
            "Versions of disagg-node",
            "How many nodes run which version. Good: one row, or two during a roll-out.",
            [Ask(f"count by (version) (disagg_build_info{{{N}}})")],
            [Column("version", "Version"), Column("A", "Nodes", decimals=0)],
            sort="Nodes",
            width=8,
            height=8,
        ),
        rows(
            "Nodes",
            "The 50 nodes whose books are furthest behind. Click a node for its GPUs.",
            [
                Ask(
                    "topk(50, time() - min by (cluster, node)"
                    f" (disagg_gpu_watermark_timestamp_seconds{{{N}}}))"
                ),
                Ask(f"max by (cluster, node) (scrape_duration_seconds{{{J}}})"),
                Ask(f"min by (cluster, node) (disagg_collector_success{{{N}}})"),
                Ask(f"sum by (cluster, node) (disagg_worker_restarts_total{{{N}}})"),
                Ask(f"sum by (cluster, node) (disagg_lost_records_total{{{N}}})"),
            ],
            [
                Column("cluster", "Cluster"),
                Column("node", "Node", link=NODE_LINK),
                Column("A", "Books behind by", unit="s", decimals=1),
                Column("B", "Scrape", unit="s", decimals=1),
                Column(
                    "C",
                    "Collectors",
                    texts=(("1", "all succeed", "green"), ("0", "one fails", "red")),
                ),
                Column("D", "Restarts", decimals=0),
                Column("E", "Lost records", decimals=0),
            ],
            sort="Books behind by",
            height=6,
        ),
    ]


def dashboard() -> dict[str, Any]:
    """Whether the figures can be believed."""
    idle = f'{N}, role="none", phase="idle"'
    return board(
        "exporter",
        "disagg-node / Exporter health",
        "Whether the other dashboards can be believed: scrapes, collectors, how far the books are "
        "behind, lost records, how attribution was done.",
        variables=[CLUSTER, NODE, JOB],
        rows=[_now(), _collectors(), books(), _scrapes()],
        marks=[
            mark(
                "Daemon starts",
                f"resets(disagg_node_phase_seconds_total{{{idle}}}[1m]) > 0",
                "Daemon start",
                "the counters of {{node}} began anew",
                "purple",
            ),
        ],
    )
