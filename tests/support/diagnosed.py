"""Diagnoses made by hand: one of each outcome, with everything that user interfaces show."""

from __future__ import annotations

from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    Cause,
    DiagnosisOutcome,
    EngineKey,
    EngineParts,
    Evidence,
    ModelDiagnosis,
    ModelKey,
    Remedy,
    RemedyKind,
    TtftPart,
)
from disagg_exporter.model import Role

NOW_SECONDS = 1_763_877_600.0
"""2025-11-23 06:00 UTC."""
LLAMA = ModelKey("east", "search", "llama")
SICK, WELL = EngineKey("gpu-7", "prefill-1"), EngineKey("gpu-6", "prefill-0")
DECODE = EngineKey("gpu-8", "decode-0")

SLOW_GPU = BottleneckFinding(
    Cause.SLOW_GPU,
    Role.PREFILL,
    (SICK,),
    0.97,
    0.412,
    0.83,
    NOW_SECONDS - 480,
    (
        Evidence(
            "step_time_ratio",
            2.03,
            1.0,
            "ratio",
            "steps take 2.03 times what the same work took before; peers take 1.01 times",
        ),
        Evidence(
            "sm_clock", 0.98e9, 1.98e9, "hertz", "its clock is at 0.98 GHz, its peers' at 1.98"
        ),
    ),
    Remedy(RemedyKind.ROUTE_AWAY, "Send prefill-1 a third of the prompts.", None, 0.39),
    "Each step of prefill-1 takes twice as long as the same work takes its peers.",
)
DEMAND = BottleneckFinding(
    Cause.DEMAND,
    Role.DECODE,
    (),
    0.6,
    0.05,
    0.05,
    NOW_SECONDS - 1200,
    (),
    Remedy(RemedyKind.SET_SEQS, "Let each decode engine run more requests.", 384, None),
    "",
)
PARTS = (
    EngineParts(
        WELL,
        Role.PREFILL,
        ((TtftPart.QUEUE, 0.05), (TtftPart.PREFILL, 0.21)),
        ((TtftPart.QUEUE, 0.05), (TtftPart.PREFILL, 0.2)),
    ),
    EngineParts(
        SICK,
        Role.PREFILL,
        ((TtftPart.QUEUE, 0.64), (TtftPart.PREFILL, 0.42)),
        ((TtftPart.QUEUE, 0.05), (TtftPart.PREFILL, 0.2)),
    ),
    EngineParts(DECODE, Role.DECODE, ((TtftPart.KV_TRANSFER, 0.03), (TtftPart.FIRST_DECODE, 0.02))),
)
FOUND = ModelDiagnosis(
    LLAMA,
    NOW_SECONDS,
    DiagnosisOutcome.FOUND,
    (SLOW_GPU, DEMAND),
    PARTS,
    ("how long requests wait in the router: no frontend is read",),
    "One engine of two holds half of the requests back.",
)
CLEAN = ModelDiagnosis(
    LLAMA,
    NOW_SECONDS,
    DiagnosisOutcome.NO_BOTTLENECK,
    parts=(PARTS[0], PARTS[2]),
    text="First tokens take what their work takes.",
)
UNDECIDED = ModelDiagnosis(
    ModelKey("east", "", "qwen"),
    NOW_SECONDS,
    DiagnosisOutcome.UNDECIDED,
    missing=("the parts of the first token: no engine tells them",),
    text="First tokens take 0.4 s longer than half an hour ago, and nothing shows why.",
)
