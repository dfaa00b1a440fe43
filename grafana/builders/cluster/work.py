"""Rows of the Cluster dashboard: tokens and their cost, models, kinds of GPU, nodes."""

from __future__ import annotations

from grafana.builders.cluster.queries import C, M, enough, ratio
from grafana.builders.panels.board import MODEL_LINK, NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.palette import BLUE, GREEN, PHASES
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, rows


def work() -> Row:
    """Tokens of the chosen models, and their cost in GPU-seconds and energy."""
    model = f'{M}, phase=~"prefill|decode"'
    computed = f"disagg_node_phase_tokens_total{{{M}}}"

    def total(counter: str) -> str:
        return f"sum by (phase) (rate({counter}{{{model}}}[5m]))"

    # Each quotient covers engines or devices that report both terms: those that report no tokens,
    # or no energy, must not distort it.
    tokens = total("disagg_node_phase_tokens_total")
    seconds = total("disagg_node_token_gpu_seconds_total")
    a_million = f"({seconds} {enough('rate5m')}) / ({tokens} > 0) * 1e6"
    joules = total("disagg_node_energy_joules_total")
    told = total("disagg_node_energy_gpu_seconds_total")
    return "Work of model $model", [
        lines(
            "Tokens computed a second",
            "Prompt tokens (prefill) and output tokens (decode); excludes cached and transferred "
            "tokens. Each phase has its own axis. Good: follows demand. Bad: flat while GPUs are "
            "full and requests wait.",
            [Ask(f"sum by (phase) (rate({computed}[$__rate_interval]))", "{{phase}}")],
            width=6,
            right="decode",
            colours=PHASES,
            none="no engine of these models counts tokens",
        ),
        lines(
            "GPU-seconds per million tokens",
            "GPU-seconds per million tokens of each phase, over 5 minutes, log axis. Good: low "
            "and steady. Decode rises when batches get small; prefill rises with short prompts or "
            "long contexts. Only engines that report tokens.",
            [Ask(a_million, "{{phase}}")],
            width=6,
            log=10,
            filled=0,
            colours=PHASES,
            none="no tokens in this time range",
        ),
        lines(
            "Energy per million tokens",
            "Joules per million tokens of each phase, over 5 minutes, log axis; excludes idle "
            "time. Good: low and steady. Mean watts of devices that report energy, times the "
            "GPU-seconds of the panel beside.",
            [Ask(f"{joules} / ({told} {enough('rate5m')}) * ({a_million})", "{{phase}}")],
            unit="joule",
            width=6,
            log=10,
            filled=0,
            colours=PHASES,
            none="devices report no energy, or no tokens in this time range",
        ),
        lines(
            "Prefill : decode by model",
            "Ratio of GPU time of each model over 5 minutes, on an axis where twice and half are "
            "equally far from 1. Models may differ; if one model's ratio alone moves, its traffic "
            "has changed.",
            [
                Ask(
                    ratio("cluster_model:disagg_phase_gpu_seconds:rate5m", M, "model_name")
                    + " > 0",
                    "{{model_name}}",
                )
            ],
            decimals=2,
            width=6,
            log=2,
            filled=0,
            none="one phase does no work, so there is no ratio to draw",
        ),
    ]


def tables() -> Row:
    """One row per model, and one per kind of GPU."""
    model = "cluster_model:disagg_phase_gpu_seconds:rate5m"
    tokens = f"rate(disagg_node_phase_tokens_total{{{M}}}[5m])"
    seconds = f"rate(disagg_node_token_gpu_seconds_total{{{M}}}[5m])"
    gpu = "cluster_gpu:disagg_phase_gpu_seconds:rate5m"
    held = once("disagg_node_role_gpus", C)
    by_model, by_gpu = "sum by (cluster, model_name)", "sum by (cluster, gpu_name)"
    return "By model and by kind of GPU, over 5 minutes", [
        rows(
            "Work by model",
            "What each model uses and produces; the last column covers both phases. Look for a "
            "model with many GPUs and few tokens, or with a ratio far from the others that share "
            "its pools.",
            [
                Ask(f'{by_model} ({model}{{{M}, phase="prefill"}})'),
                Ask(f'{by_model} ({model}{{{M}, phase="decode"}})'),
                Ask(ratio(model, M, "cluster, model_name")),
                Ask(
                    f'{by_model} (rate(disagg_node_phase_tokens_total{{{M}, phase="prefill"}}[5m]))'
                ),
                Ask(
                    f'{by_model} (rate(disagg_node_phase_tokens_total{{{M}, phase="decode"}}[5m]))'
                ),
                Ask(f"{by_model} ({seconds}) / ({by_model} ({tokens}) > 0) * 1e6"),
            ],
            [
                Column("cluster", "Cluster"),
                Column("model_name", "Model", link=MODEL_LINK),
                Column("A", "Prefill GPUs", decimals=2, width=110),
                Column("B", "Decode GPUs", decimals=2, width=130),
                Column("C", "P:D", decimals=2, width=70),
                Column("D", "Prefill tok/s", unit="short", decimals=1, width=105),
                Column("E", "Decode tok/s", unit="short", decimals=1, width=110),
                Column("F", "GPU-s / M tok", unit="short", decimals=1, width=125),
            ],
            sort="Decode GPUs",
            none="no work in this time range",
            width=15,
            height=6,
        ),
        rows(
            "Kinds of GPU",
            "Cluster figures count all GPUs alike, whatever their kind; in a mixed cluster, read "
            "these rows. Bad: a kind that is much less busy than another in the same role.",
            [
                Ask(f'{by_gpu} ({gpu}{{{C}, phase="prefill"}})'),
                Ask(f'{by_gpu} ({gpu}{{{C}, phase="decode"}})'),
                Ask(ratio(gpu, C, "cluster, gpu_name")),
                Ask(f"{by_gpu} ({held})"),
            ],
            [
                Column("gpu_name", "GPU"),
                Column("D", "GPUs", decimals=0, width=80),
                Column("A", "Prefill GPUs", decimals=2, width=110),
                Column("B", "Decode GPUs", decimals=2, width=130),
                Column("C", "P:D", decimals=2, width=70),
            ],
            sort="GPUs",
            none="no GPU is visible",
            width=9,
            height=6,
        ),
    ]


def nodes() -> Row:
    """The busiest nodes, with links to them."""
    metric = "node:disagg_phase_gpu_seconds:rate1m"
    busy = f"{metric}{{{C}}}"
    held = once("disagg_node_role_gpus", C)
    by_node = "sum by (cluster, node)"
    top = f"topk (20, {by_node} ({busy}))"
    kept = f"and on (cluster, node) {top}"
    return "Nodes", [
        rows(
            "The 20 busiest nodes",
            "Click a node for its GPUs. Good: nodes of one role alike. Look for a node whose "
            "share differs from others of its kind, or with GPUs in no pool.",
            [
                Ask(top),
                Ask(f'{by_node} ({metric}{{{C}, phase="prefill"}}) {kept}'),
                Ask(f'{by_node} ({metric}{{{C}, phase="decode"}}) {kept}'),
                Ask(f"node:disagg_prefill_share:ratio_rate1m{{{C}}} {kept}"),
                Ask(f"{by_node} ({held}) {kept}"),
                Ask(f"{by_node} ({busy}) / ({by_node} ({held}) > 0) {kept}"),
            ],
            [
                Column("cluster", "Cluster"),
                Column("node", "Node", link=NODE_LINK),
                Column("E", "GPUs", decimals=0),
                Column("A", "Busy GPUs", decimals=2),
                Column("B", "Prefill GPUs", decimals=2),
                Column("C", "Decode GPUs", decimals=2),
                Column("D", "Prefill share", bar=BLUE),
                Column("F", "Busy", bar=GREEN),
            ],
            sort="Busy GPUs",
            none="no node of these clusters is scraped: see docs/prometheus.md",
            height=6,
        )
    ]
