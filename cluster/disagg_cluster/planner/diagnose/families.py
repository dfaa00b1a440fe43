"""The metric families that a diagnosis reads: a `SeriesWindow` needs no others."""

from __future__ import annotations

from disagg_cluster.planner.diagnose.evidence.features import ENGINE_FEATURES, GPU_FEATURES
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import PROMPT_LENGTHS, PROMPT_SUMS
from disagg_cluster.planner.diagnose.evidence.users import USER_FEATURES

# Engines, GPUs, and which engine holds which GPU.
_FACTS = ("disagg_engine_info", "disagg_gpu_assignment_info", "disagg_gpu_info")
FAMILIES: tuple[str, ...] = (
    *_FACTS,
    *dict.fromkeys(feature.family for feature in (*ENGINE_FEATURES, *GPU_FEATURES, *USER_FEATURES)),
    PROMPT_LENGTHS,
    PROMPT_SUMS,
)
