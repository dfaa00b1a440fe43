"""Folded row of the Engines dashboard: what needs a connector, a model or a kind of engine."""

from __future__ import annotations

from grafana.builders.engines.queries import NAMED, E, R, rate
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.queries import Ask


def some_report() -> Row:
    """Folded: it takes a connector that counts, a known model and GPU, or a shared GPU."""
    seconds, moved = (
        "disagg_engine_kv_transfer_seconds_total",
        "disagg_engine_kv_transfer_bytes_total",
    )
    count = f"(sum by (node, engine) ({rate('disagg_engine_kv_transfers_total')}) > 0)"

    def peak_share(metric: str) -> list[Ask]:
        return [Ask(f"max by (node, engine) ({metric}{{{R}}})", NAMED)]

    return "What only some engines report", [
        lines(
            "Time of a KV transfer",
            "Mean seconds of a transfer; a first token waits for it. Good: far below the first "
            "token's target. More than a second raises an alert.",
            [Ask(f"sum by (node, engine) ({rate(seconds)}) / {count}", NAMED)],
            unit="s",
            width=THIRD,
            filled=0,
            runbooks=("DisaggKvTransferSlow",),
        ),
        lines(
            "Size of a KV transfer",
            "Mean bytes of a transfer. It follows the length of the prompts: a jump is other "
            "traffic, or a prefix cache that no longer helps.",
            [Ask(f"sum by (node, engine) ({rate(moved)}) / {count}", NAMED)],
            unit="bytes",
            width=THIRD,
            filled=0,
        ),
        lines(
            "MFU",
            "Operations of the model's matrices over the peak of the engine's GPUs, the last "
            "minute; attention is not in it. Only of models and GPUs that are known. High is good "
            "on prefill; decode is low by nature.",
            peak_share("disagg_engine_model_flops_ratio"),
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "MBU",
            "Bytes of weights and KV that steps had to read over the peak of the memory, the last "
            "minute. Only of models and GPUs that are known. High is good on decode.",
            peak_share("disagg_engine_model_bandwidth_ratio"),
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "SM share on shared GPUs",
            "Share of SM time that an engine took of a GPU which several engines share, as the "
            "driver sampled it. Hold it against the engine's busy GPUs, which are halved while two "
            "have a step there.",
            [Ask(f"max by (node, engine, gpu) (disagg_engine_gpu_sm_ratio{{{E}}})", NAMED)],
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "Registered Dynamo workers",
            "1 while a worker is registered where its frontends look, 0 while it answers and is "
            "not: then no request reaches it. Good: all at 1.",
            [Ask(f"min by (node, engine) (disagg_engine_registered{{{E}}})", NAMED)],
            decimals=0,
            width=THIRD,
            at_least=1,
            filled=0,
            runbooks=("DisaggEngineUnregistered",),
        ),
    ]
