"""All kinds of engine whose pages we read, the surest to tell first."""

from __future__ import annotations

from disagg_exporter.engine_pages.engines.dynamo import DYNAMO
from disagg_exporter.engine_pages.engines.series import Adapter
from disagg_exporter.engine_pages.engines.sglang import SGLANG
from disagg_exporter.engine_pages.engines.trtllm import TRTLLM, TRTLLM_UNPREFIXED
from disagg_exporter.engine_pages.engines.vllm import VLLM

ADAPTERS: tuple[Adapter, ...] = (VLLM, SGLANG, TRTLLM, DYNAMO, TRTLLM_UNPREFIXED)

KINDS = tuple(dict.fromkeys(adapter.kind for adapter in ADAPTERS))
"""Our words for these engines."""


def page_path(kind: str) -> str:
    """Return where an engine's page is on its server.

    TensorRT-LLM's `/metrics` must never be asked: each look takes what others came to read.
    """
    return "/prometheus/metrics" if kind == "trtllm" else "/metrics"


def version_path(kind: str) -> str:
    """Return where an engine's server tells its version, in a JSON object under `version`."""
    return "/server_info" if kind == "sglang" else "/version"
