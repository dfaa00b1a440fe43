"""A request of our own, sent through a prefill and a decode engine as a router would send it.

It is what a worker is proven by where no user's request comes its way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from disagg_cluster.switching.json_http import JsonAnswer, SilentServerError, call
from disagg_exporter.errors import DisaggError

PROMPT_WORDS = 64
"""A prompt long enough for prefill to use more GPU time than counts as noise."""

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
    """A probe request was not answered as a request should be."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine is, under which name it serves, and its key if it asks for one."""

    url: str
    model_name: str
    api_key: str = ""


def probe_pair(prefill: EngineAddress, decode: EngineAddress) -> None:
    """Send one request through both; the KV goes as the connector of vLLM hands it over.

    Raises:
        ProbeFailedError: Either did not answer it.
    """
    # A prompt that was there before would be found in the cache, and not computed.
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
    except SilentServerError as error:
        raise ProbeFailedError(str(error)) from error
    if not answer.well or not isinstance(answer.value, dict):
        raise ProbeFailedError(f"{engine.url}: {answer.said()}")
    return answer
