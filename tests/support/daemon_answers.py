"""A daemon's answers to commands about its workers, and the view of its page for people."""

from __future__ import annotations

import json

from disagg_cluster.control.views import WorkerView
from disagg_cluster.lifecycle.state import WorkerState

READY = WorkerView(
    "prefill-0",
    WorkerState.READY,
    pid=11,
    state_seconds=90.0,
    reason="healthy",
    role="prefill",
    gpus=("GPU-a",),
    port=8001,
)
STARTING = WorkerView(
    "decode-0",
    WorkerState.STARTING,
    pid=12,
    state_seconds=40.0,
    restarts=2,
    reason="start 3",
    role="decode",
    gpus=("GPU-b", "GPU-c"),
    port=8002,
    deadline_seconds=560.0,
)
VIEW = json.dumps(
    {
        "made_at": "2026-11-23T10:00:00.000+00:00",
        "window_seconds": 60.0,
        "behind_seconds": 3.0,
        "gpus": [{"gpu": "GPU-aaaa0000", "use_ratios": {"prefill": 0.3, "idle": 0.7}}],
    }
).encode()
