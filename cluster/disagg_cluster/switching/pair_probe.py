"""Probe request through a prefill and a decode engine, sent as a router would.

Proves a worker's new role if it gets no user request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from disagg_cluster.switching.json_http import JsonAnswer, NoResponseError, call
from disagg_exporter.errors import DisaggError

PROMPT_WORDS = 64
"""Long enough for prefill to use more GPU time than the noise threshold."""

WRITTEN_TOKENS = 16

_SECONDS = 30.0
_NIXL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class ProbeFailedError(DisaggError):
    """A probe request failed."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an engine, its model name, and its API key if required."""

    url: str
    model_name: str
    api_key: str = ""


def probe_pair(prefill: EngineAddress, decode: EngineAddress) -> None:
    """Send one request through both; the KV is transferred as by vLLM's connector.

    Raises:
        ProbeFailedError: One of them did not answer it.
    """
    # Random, because a repeated prompt would be served from the prefix cache.
    words = " ".join(f"{random.getrandbits(20):x}" for _ in range(PROMPT_WORDS))
    request: dict[str, Any] = {"prompt": words, "temperature": 0}
    asked = request | {"model": prefill.model_name, "max_tokens": 1, "kv_transfer_params": _NIXL}
    prefilled = _completed(prefill, asked)
    transfer = prefilled.value.get("kv_transfer_params")
    asked = request | {"model": decode.model_name, "max_tokens": WRITTEN_TOKENS}
    if isinstance(transfer, dict):
        asked |= {"kv_transfer_params": transfer}
    _completed(decode, asked)


def _completed(engine: EngineAddress, body: dict[str, Any]) -> JsonAnswer:
    try:
        answer = call(
            "POST",
            f"{engine.url}/v1/completions",
            body,
            timeout_seconds=_SECONDS,
            api_key=engine.api_key,
        )
    except NoResponseError as error:
        raise ProbeFailedError(str(error)) from error
    if not answer.ok or not isinstance(answer.value, dict):
        raise ProbeFailedError(f"{engine.url}: {answer.text()}")
    return answer
