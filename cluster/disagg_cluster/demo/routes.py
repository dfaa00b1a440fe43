"""The HTTP routes of a stand-in engine: those of vLLM that the demo and its supervisor use.

Completions have vLLM's format, including KV transfer of the NIXL kind: a prefill engine receives a
request for one token with `do_remote_decode` and answers with the parameters for the decode engine;
they contain `do_remote_prefill`, and the decode engine computes no prompt.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from disagg_cluster.demo.http1 import HttpAnswer, HttpRequest
from disagg_cluster.demo.step_loop import StepLoop
from disagg_cluster.simulator.engine.batch import Sequence
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.telemetry.page import CONTENT_TYPE, Page
from disagg_exporter.errors import DisaggError

_DEFAULT_MAX_TOKENS = 16  # the default of OpenAI's and vLLM's endpoint
_CHARACTERS_PER_TOKEN = 4
_WORD = " word"


class BadCompletionRequestError(DisaggError):
    """A body that is no valid completion request; the text goes to the client."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A client's request; `prompts` are the lengths of one or several prompts, in tokens."""

    model: str
    prompts: tuple[int, ...]
    max_tokens: int
    remote_prompt: bool
    remote_decode: bool
    stream: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(self.prompts)


def parse_completion(body: bytes) -> CompletionRequest:
    """Parse a request's body; raises `BadCompletionRequestError`.

    `prompt` is a text, a list of token ids, or `{"prompt_tokens": n}` for a prompt of that length
    whose text does not matter, or a list of texts or of lists of ids. `max_tokens` defaults to 16.
    """
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadCompletionRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise BadCompletionRequestError("the body must be a JSON object")
    transfer = asked.get("kv_transfer_params") or {}
    if not isinstance(transfer, dict):
        raise BadCompletionRequestError("kv_transfer_params must be an object")
    return CompletionRequest(
        model=str(asked.get("model", "")),
        prompts=_prompts(asked.get("prompt")),
        max_tokens=_positive("max_tokens", asked.get("max_tokens", _DEFAULT_MAX_TOKENS)),
        remote_prompt=transfer.get("do_remote_prefill") is True,
        remote_decode=transfer.get("do_remote_decode") is True,
        stream=asked.get("stream") is True,
    )


def completion_body(
    asked: CompletionRequest, *, model: str, engine: str, request_id: str
) -> Mapping[str, object]:
    """Return the body of a finished completion; every token of a stand-in is the same word."""
    written = asked.max_tokens * len(asked.prompts)
    return {
        "id": request_id,
        "object": "text_completion",
        "model": model,
        "choices": [
            {"index": index, "text": _WORD * asked.max_tokens, "finish_reason": "length"}
            for index in range(len(asked.prompts))
        ],
        "usage": {
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": asked.prompt_tokens + written,
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


def _prompts(prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return tuple(_prompt_tokens(each) for each in prompt)
    return (_prompt_tokens(prompt),)


def _prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, str):
        return max(1, -(-len(prompt) // _CHARACTERS_PER_TOKEN))
    if isinstance(prompt, dict):
        return _positive("prompt_tokens", prompt.get("prompt_tokens"))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise BadCompletionRequestError('prompt must be a text, a list of ints or {"prompt_tokens": n}')


def _positive(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise BadCompletionRequestError(f"{name} must be a positive integer, not {value!r}")


_DRAIN_SECONDS = 2.0


@dataclass(slots=True)
class Routes:
    """The routes of one stand-in engine, over its step loop."""

    name: str
    model: str
    scheduler: Scheduler
    page: Page
    steps: StepLoop
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)
    _draining: bool = field(default=False, init=False)

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Answer one HTTP request."""
        match (request.method, request.path):
            case ("GET", "/health"):
                return HttpAnswer(503 if self._draining else 200)
            case ("GET", "/v1/models"):
                model = {"id": self.model, "object": "model", "owned_by": "stand-in"}
                return _json(200, {"object": "list", "data": [model]})
            case ("GET", "/metrics"):
                page = self.page.render(self.scheduler.state())
                return HttpAnswer(200, page.encode(), CONTENT_TYPE)
            case ("POST", "/v1/completions"):
                return await self._complete(request.body)
        return _refusal(404, f"a stand-in engine has no {request.method} {request.path}")

    async def drain(self) -> None:
        """Refuse new requests and wait briefly for the present ones."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.steps.emptied()

    async def _complete(self, body: bytes) -> HttpAnswer:
        if self._draining:
            return _refusal(503, "the engine is stopping")
        try:
            asked = parse_completion(body)
        except BadCompletionRequestError as error:
            return _refusal(400, str(error))
        if asked.model not in ("", self.model):
            return _refusal(404, f"the model {asked.model!r} does not exist")
        sequences = [self._sequence(asked, tokens) for tokens in asked.prompts]
        for sequence in sequences:
            if not self.scheduler.fits(sequence):
                tokens = sequence.prompt_tokens + asked.max_tokens
                return _refusal(400, f"{tokens} tokens are more than the KV cache holds")
        request_id = f"cmpl-{uuid.uuid4().hex}"
        if asked.stream:
            parts = self._stream(sequences, request_id)
            return HttpAnswer(200, content_type="text/event-stream", parts=parts)
        await asyncio.gather(*(self.steps.complete(sequence) for sequence in sequences))
        return _json(
            200,
            completion_body(asked, model=self.model, engine=self.name, request_id=request_id),
        )

    def _sequence(self, asked: CompletionRequest, prompt_tokens: int) -> Sequence:
        return Sequence(
            number=next(self._numbers),
            prompt_tokens=prompt_tokens,
            max_tokens=asked.max_tokens,
            arrived_ns=time.monotonic_ns(),
            remote_prompt=asked.remote_prompt,
        )

    async def _stream(self, sequences: list[Sequence], request_id: str) -> AsyncIterator[bytes]:
        """Yield server-sent events: a word for each token of each request, as its step ends."""
        all_done = asyncio.gather(*(self.steps.complete(sequence) for sequence in sequences))
        sent = [0] * len(sequences)
        try:
            while sum(sent) < sum(sequence.max_tokens for sequence in sequences):
                await self.steps.stepped()
                for index, sequence in enumerate(sequences):
                    written = sequence.tokens - sequence.prompt_tokens
                    for number in range(sent[index] + 1, written + 1):
                        ended = "length" if number == sequence.max_tokens else None
                        choice = {"index": index, "text": _WORD, "finish_reason": ended}
                        yield _event(
                            {"id": request_id, "object": "text_completion", "choices": [choice]}
                        )
                    sent[index] = written
            await all_done
            yield b"data: [DONE]\n\n"
        finally:
            all_done.cancel()
            with suppress(asyncio.CancelledError):
                await all_done


def _event(value: Mapping[str, object]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _json(status: int, body: Mapping[str, object]) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(body).encode())


def _refusal(status: int, why: str) -> HttpAnswer:
    return _json(status, {"error": {"message": why, "code": status}})
