"""The completion endpoint of a stand-in engine: body → what is asked, and its answer → body.

The form is vLLM's, KV transfer of the NIXL kind included: a prefill engine is asked for one
token with `do_remote_decode` and answers with the parameters that the decode engine is then
given; they say `do_remote_prefill`, and the decode engine computes no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from disagg_exporter.errors import DisaggError

_DEFAULT_MAX_TOKENS = 16  # what OpenAI's and vLLM's endpoint take when nothing is said
_CHARACTERS_PER_TOKEN = 4
_WORD = " word"


class CompletionError(DisaggError):
    """A body that no completion can be made of; its text goes to the client."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a client asks for."""

    model: str
    prompt_tokens: int
    max_tokens: int
    remote_prompt: bool
    remote_decode: bool


def parse(body: bytes) -> Completion:
    """Read a request's body; raises `CompletionError`.

    `prompt` is a text, a list of token ids, or `{"prompt_tokens": n}` for a prompt of that length
    whose text nobody needs. `max_tokens` defaults to 16.
    """
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise CompletionError(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise CompletionError("the body must be a JSON object")
    if asked.get("stream"):
        raise CompletionError("a stand-in engine does not stream")
    transfer = asked.get("kv_transfer_params") or {}
    if not isinstance(transfer, dict):
        raise CompletionError("kv_transfer_params must be an object")
    return Completion(
        model=str(asked.get("model", "")),
        prompt_tokens=_prompt_tokens(asked.get("prompt")),
        max_tokens=_positive("max_tokens", asked.get("max_tokens", _DEFAULT_MAX_TOKENS)),
        remote_prompt=transfer.get("do_remote_prefill") is True,
        remote_decode=transfer.get("do_remote_decode") is True,
    )


def answer(asked: Completion, *, model: str, engine: str, request_id: str) -> Mapping[str, object]:
    """The body of a finished completion; every token of a stand-in is the same word."""
    return {
        "id": request_id,
        "object": "text_completion",
        "model": model,
        "choices": [{"index": 0, "text": _WORD * asked.max_tokens, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": asked.max_tokens,
            "total_tokens": asked.prompt_tokens + asked.max_tokens,
        },
        "kv_transfer_params": _transfer(engine, request_id) if asked.remote_decode else None,
    }


def _transfer(engine: str, request_id: str) -> Mapping[str, object]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [],
        "remote_engine_id": engine,
        "remote_request_id": request_id,
        "remote_host": "127.0.0.1",
        "remote_port": 0,
        "transfer_mode": "pull",
    }


def _prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, str):
        return max(1, -(-len(prompt) // _CHARACTERS_PER_TOKEN))
    if isinstance(prompt, dict):
        return _positive("prompt_tokens", prompt.get("prompt_tokens"))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise CompletionError('prompt must be a text, a list of ints or {"prompt_tokens": n}')


def _positive(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise CompletionError(f"{name} must be a positive integer, not {value!r}")
