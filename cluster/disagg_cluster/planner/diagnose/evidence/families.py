"""Which families of the page a diagnosis reads: whoever fills a `SeriesWindow` needs no other."""

from __future__ import annotations

from disagg_cluster.planner.diagnose.evidence.features import ENGINE_FEATURES, GPU_FEATURES
from disagg_cluster.planner.diagnose.evidence.users import USER_FEATURES

# What there is, and on what.
_FACTS = ("disagg_engine_info", "disagg_gpu_assignment_info", "disagg_gpu_info")
# How long the prompts of single engines' requests are: read of suspects only.
_PROMPT_LENGTHS = (
    "disagg_engine_request_prompt_tokens_bucket",
    "disagg_engine_request_prompt_tokens_sum",
    "disagg_engine_request_prompt_tokens_count",
)

FAMILIES: tuple[str, ...] = (
    *_FACTS,
    *dict.fromkeys(feature.family for feature in (*ENGINE_FEATURES, *GPU_FEATURES, *USER_FEATURES)),
    *_PROMPT_LENGTHS,
)
