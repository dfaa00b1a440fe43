"""Long steps that begin from rest, on a simulated GPU whose activity is read, by real processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from disagg_cluster.demo.disaggregated_client import complete_on_one
from support.running_node import running_node
from support.standins import MODEL
from support.two_planes import standin_node

PROMPTS, TOKENS, SECONDS = 2, 1000, 10.0


def test_ten_second_prompts_after_idle_are_attributed_to_their_engine(
    folder: Path,
) -> None:
    costs = {"step_base_seconds": 0.0, "prefill_token_seconds": SECONDS / TOKENS}
    node_file = standin_node(folder, devices="sim", sim_devices=1)
    prefill, _ = node_file["workers"]
    prefill |= {"role": "mixed", "gpus": [0], "args": ["--costs", json.dumps(costs)]}
    node_file["workers"] = [prefill]
    with running_node(node_file, folder) as node:
        node.wait_ready()
        for _ in range(PROMPTS):
            # Heartbeats of the idle engine commit seconds up to the watermark.
            node.wait_committed("prefill-0", until=time.time())
            complete_on_one(node.url("prefill-0"), MODEL, "word" * TOKENS, 1, 60.0)
        page = node.wait_settled()

    def seconds(name: str, **labels: str) -> float:
        return page.sum(name, engine="prefill-0", **labels)

    booked = seconds("disagg_engine_gpu_seconds_total", phase="prefill")
    assert booked == pytest.approx(PROMPTS * SECONDS, rel=0.02)
    assert seconds("disagg_span_cut_seconds_total") == 0
    assert page.sum("disagg_gpu_unattributed_seconds_total") < 1.0
