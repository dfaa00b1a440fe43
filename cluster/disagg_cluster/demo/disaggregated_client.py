"""A client that sends one completion through a prefill and a decode engine.

It acts as the router: the prompt goes to the prefill engine for one token, then the same request to
the decode engine, which fetches the prompt's KV from where the connector left it.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from disagg_exporter.errors import DisaggError

NIXL = "NixlConnector"
EXAMPLE = "ExampleConnector"

_ASK_FOR_TRANSFER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_REASON_CHARACTERS = 300


class CompletionError(DisaggError):
    """An engine did not answer, refused, or answered with something other than a completion."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The text of one completion, and how long each of the two engines took for it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    prefill_seconds: float
    decode_seconds: float


def complete(
    prefill_url: str,
    decode_url: str,
    model: str,
    prompt: str,
    max_tokens: int,
    connector: str,
    timeout: float,
) -> Completion:
    """Complete `prompt` greedily over both engines; base URLs, `timeout` in seconds for each.

    `connector` is `NIXL` (the prefill engine's answer names the blocks that the decode engine
    fetches) or `EXAMPLE` (both share a folder, and the request carries no transfer parameters).

    Raises:
        CompletionError: naming the phase, the address and the engine's answer.
        ValueError: for another connector, or a URL that is not plain http.
    """
    if connector not in (NIXL, EXAMPLE):
        raise ValueError(f"unknown connector {connector!r}, expected {NIXL} or {EXAMPLE}")
    request = _request(model, prompt, max_tokens)
    to_prefill = request | {"max_tokens": 1}
    if connector == NIXL:
        to_prefill["kv_transfer_params"] = _ASK_FOR_TRANSFER
    started = time.monotonic()
    prefilled = _post("prefill", prefill_url, to_prefill, timeout)
    prefill_seconds = time.monotonic() - started
    if connector == NIXL:
        request["kv_transfer_params"] = _transfer_of(prefilled, prefill_url)
    return _complete("decode", decode_url, request, timeout, prefill_seconds)


def complete_on_one(
    url: str, model: str, prompt: str, max_tokens: int, timeout: float
) -> Completion:
    """Complete `prompt` on one engine that does both phases; same errors as `complete`.

    All of its seconds are `decode_seconds`: a client cannot see where prefill ends.
    """
    return _complete("mixed", url, _request(model, prompt, max_tokens), timeout, 0.0)


def _request(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def _transfer_of(prefilled: dict[str, Any], url: str) -> dict[str, Any]:
    transfer = prefilled.get("kv_transfer_params")
    if not isinstance(transfer, dict) or not transfer.get("remote_engine_id"):
        raise CompletionError(
            f"prefill engine {url} answered without kv_transfer_params: is it started with "
            f"a kv_transfer of connector {NIXL}?"
        )
    return transfer


def _complete(
    phase: str, url: str, request: dict[str, Any], timeout: float, prefill_seconds: float
) -> Completion:
    started = time.monotonic()
    answer = _post(phase, url, request, timeout)
    try:
        return Completion(
            text=str(answer["choices"][0]["text"]),
            prompt_tokens=int(answer["usage"]["prompt_tokens"]),
            completion_tokens=int(answer["usage"]["completion_tokens"]),
            prefill_seconds=prefill_seconds,
            decode_seconds=time.monotonic() - started,
        )
    except (KeyError, IndexError, TypeError, ValueError):
        shown = json.dumps(answer)[:_REASON_CHARACTERS]
        raise CompletionError(f"{phase} engine {url} sent no completion: {shown}") from None


# Engines are on this machine or beside it: never through the environment's proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _post(phase: str, url: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    if urllib.parse.urlsplit(url).scheme != "http":
        raise ValueError(f"{phase} URL must begin with http://: {url!r}")
    request = urllib.request.Request(
        url.rstrip("/") + "/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with _DIRECT.open(request, timeout=timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_REASON_CHARACTERS).decode(errors="replace")
        raise CompletionError(f"{phase} engine {url} said {error.code}: {said}") from error
    except TimeoutError as error:
        raise CompletionError(f"{phase} engine {url} said nothing for {timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CompletionError(f"{phase} engine {url} is not reachable: {reason}") from error
    except ValueError as error:
        raise CompletionError(f"{phase} engine {url} answered with no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise CompletionError(f"{phase} engine {url} answered with no JSON object")
    return answer
