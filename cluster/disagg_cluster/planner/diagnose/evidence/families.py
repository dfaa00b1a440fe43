"""Which families of the page a diagnosis reads: whoever fills a `SeriesWindow` needs no other."""

from __future__ import annotations

from disagg_cluster.planner.diagnose.evidence.features import ENGINE_FEATURES, GPU_FEATURES
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import PROMPT_LENGTHS, PROMPT_SUMS
from disagg_cluster.planner.diagnose.evidence.users import USER_FEATURES

# What there is, and on what.
_FACTS = ("disagg_engine_info", "disagg_gpu_assignment_info", "disagg_gpu_info")
FAMILIES: tuple[str, ...] = (
    *_FACTS,
    *dict.fromkeys(feature.family for feature in (*ENGINE_FEATURES, *GPU_FEATURES, *USER_FEATURES)),
    PROMPT_LENGTHS,
    PROMPT_SUMS,
)
