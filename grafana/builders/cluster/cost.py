"""Row of the Cluster dashboard: usage and cost by namespace and model."""

from __future__ import annotations

from grafana.builders.cluster.queries import N, price_of_tokens
from grafana.builders.panels.board import MODEL_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.palette import PHASES
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, rows


def cost() -> Row:
    """GPU time, tokens, energy and cost of the chosen models, as hourly rates."""
    seconds = "cluster_model_namespace:disagg_gpu_seconds:rate1h"
    tokens = "cluster_model_namespace:disagg_phase_tokens:rate1h"
    watts = "cluster_model_namespace:disagg_energy_watts:rate1h"
    money = "cluster_model_namespace:disagg_cost_per_hour:rate1h"
    by_phase = {f"^{phase}( .*)?$": colour for phase, colour in PHASES.items()}
    by = "sum by (cluster, engine_namespace, model_name)"

    def hours(matchers: str) -> Ask:
        return Ask(f"{by} ({seconds}{{{N}, {matchers}}})")

    def made(phase: str) -> Ask:
        return Ask(f'{by} ({tokens}{{{N}, phase="{phase}"}}) * 3600')

    return "Showback of model $model, an hour at the pace of the last", [
        rows(
            "Who uses what",
            "GPU-hours, tokens, energy and cost of an hour at the pace of the last, by namespace "
            "and model: a node measured for ten minutes counts as if it had gone on for the hour, "
            "one that left does not count. `disagg-node report` adds up what was used. Idle time "
            "counts for the model that holds the GPUs. Outside Kubernetes there is no namespace. "
            "Cost needs `gpu_price` in the node file. Click a model for its engines.",
            [
                hours('phase="prefill"'),
                hours('phase="decode"'),
                hours('phase!~"prefill|decode"'),
                made("prefill"),
                made("decode"),
                Ask(f"{by} ({watts}{{{N}}})"),
                Ask(f"{by[:-1]}, currency) ({money}{{{N}}})"),
            ],
            [
                Column("cluster", "Cluster"),
                Column("engine_namespace", "Namespace"),
                Column("model_name", "Model", link=MODEL_LINK),
                Column("A", "Prefill GPU-h", decimals=2),
                Column("B", "Decode GPU-h", decimals=2),
                Column("C", "Idle GPU-h", decimals=2),
                Column("D", "Prompt tokens", unit="short", decimals=1),
                Column("E", "Output tokens", unit="short", decimals=1),
                Column("F", "Energy", unit="watth", decimals=1),
                Column("G", "Cost", decimals=2),
                Column("currency", "Currency", width=90),
            ],
            sort="Cost",
            none="available five minutes after the first scrape",
            height=6,
        ),
        lines(
            "Cost of an hour",
            "Cost of an hour of GPU time at the pace of the last, by phase. Good: mostly blue and "
            "orange. Grey is money spent on GPUs that wait.",
            [Ask(f"sum by (phase, currency) ({money}{{{N}}})", "{{phase}} {{currency}}")],
            decimals=2,
            height=7,
            stacked=True,
            colours=by_phase,
            none="no node has a price: set gpu_price in the node file",
        ),
        lines(
            "Cost of a million tokens",
            "Cost of the GPU time in each phase per million of its tokens, last hour; excludes "
            "idle time. Covers engines that report tokens, on nodes with a price. Good: low and "
            "steady.",
            [Ask(price_of_tokens(N), "{{phase}} {{currency}}")],
            decimals=2,
            height=7,
            log=10,
            filled=0,
            colours=by_phase,
            none="no node has a price (gpu_price in the node file), or no tokens",
        ),
    ]
