"""Folded row of the Engines dashboard: panels that not every engine has data for."""

from __future__ import annotations

from grafana.builders.engines.queries import BY_ROLE, OTHERS, E, rate, top, top_of_gauge
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import THIRD
from grafana.builders.panels.limits import TRANSFER_SECONDS, limit
from grafana.builders.panels.palette import ROLE_TONES
from grafana.builders.panels.queries import Ask


def some_report() -> Row:
    """Folded: needs a connector that counts, a known model and GPU, a shared GPU or Dynamo."""
    seconds, moved = (
        "disagg_engine_kv_transfer_seconds_total",
        "disagg_engine_kv_transfer_bytes_total",
    )
    count = f"({BY_ROLE} ({rate('disagg_engine_kv_transfers_total')}) > 0)"
    no_transfer = "no engine here counts KV transfers"
    not_known = "needs engines that report steps, and known models and GPUs"
    tones = ROLE_TONES

    return "What only some engines report", [
        lines(
            "Time of a KV transfer",
            "Mean seconds per transfer; a first token waits for it. Good: far below the "
            "first-token target. At the dashed line an alert fires.",
            top(f"{BY_ROLE} ({rate(seconds)}) / {count}"),
            steps=limit(TRANSFER_SECONDS),
            tones=tones,
            dashed=OTHERS,
            none=no_transfer,
            unit="s",
            width=THIRD,
            filled=0,
            runbooks=("DisaggKvTransferSlow",),
        ),
        lines(
            "Size of a KV transfer",
            "Mean bytes per transfer. It depends on prompt length: a jump means different "
            "traffic, or a prefix cache that no longer helps.",
            top(f"{BY_ROLE} ({rate(moved)}) / {count}"),
            tones=tones,
            dashed=OTHERS,
            none=no_transfer,
            unit="bytes",
            width=THIRD,
            filled=0,
        ),
        lines(
            "MFU",
            "Operations of the model's matrices over the peak of the engine's GPUs, last minute; "
            "excludes attention. Only for known models and GPUs. High is good on prefill; decode "
            "is low by nature.",
            top_of_gauge("disagg_engine_model_flops_ratio"),
            tones=tones,
            dashed=OTHERS,
            none=not_known,
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "MBU",
            "Bytes of weights and KV that steps had to read over the peak memory bandwidth, last "
            "minute. Only for known models and GPUs. High is good on decode.",
            top_of_gauge("disagg_engine_model_bandwidth_ratio"),
            tones=tones,
            dashed=OTHERS,
            none=not_known,
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "SM share on shared GPUs",
            "Share of SM time used by each engine on a GPU that several engines share, as sampled "
            "by the driver. Compare with the engine's busy GPUs, which are halved while two "
            "engines have a step there.",
            [
                Ask(
                    "topk(10, max by (cluster, node, engine, gpu)"
                    f" (disagg_engine_gpu_sm_ratio{{{E}}}))",
                    "{{engine}} {{node}}",
                )
            ],
            none="no GPU here serves several engines",
            unit="percentunit",
            width=THIRD,
            top=1,
            filled=0,
        ),
        lines(
            "Registered Dynamo workers",
            "1: the worker is registered where its frontends look; 0: it answers but is not "
            "registered, so no request reaches it. Good: all at 1.",
            [
                Ask(
                    "bottomk(10, min by (cluster, node, engine)"
                    f" (disagg_engine_registered{{{E}}}))",
                    "{{engine}} {{node}}",
                )
            ],
            none="no Dynamo worker here",
            decimals=0,
            width=THIRD,
            at_least=1,
            filled=0,
            runbooks=("DisaggEngineUnregistered",),
        ),
    ]
