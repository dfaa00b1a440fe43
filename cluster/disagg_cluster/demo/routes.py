"""The HTTP routes of a stand-in engine: vLLM's, as far as the demo and its supervisor ask."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

from disagg_cluster.demo import completions
from disagg_cluster.demo.http1 import HttpAnswer, HttpRequest
from disagg_cluster.demo.step_loop import StepLoop
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.engine.sequence import Sequence
from disagg_cluster.simulator.telemetry.page import CONTENT_TYPE, Page

_DRAIN_SECONDS = 2.0


class Routes:
    """The routes of one stand-in engine, over its step loop."""

    def __init__(
        self, name: str, model: str, scheduler: Scheduler, page: Page, steps: StepLoop
    ) -> None:
        self._name = name
        self._model = model
        self._scheduler = scheduler
        self._page = page
        self._steps = steps
        self._numbers = itertools.count()
        self._draining = False

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Answer one HTTP request."""
        match (request.method, request.path):
            case ("GET", "/health"):
                return HttpAnswer(503 if self._draining else 200)
            case ("GET", "/v1/models"):
                model = {"id": self._model, "object": "model", "owned_by": "stand-in"}
                return _json(200, {"object": "list", "data": [model]})
            case ("GET", "/metrics"):
                page = self._page.render(self._scheduler.standing())
                return HttpAnswer(200, page.encode(), CONTENT_TYPE)
            case ("POST", "/v1/completions"):
                return await self._complete(request.body)
        return _refusal(404, f"a stand-in engine has no {request.method} {request.path}")

    async def drain(self) -> None:
        """Take no more requests and wait a little for those that are here."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._steps.emptied()

    async def _complete(self, body: bytes) -> HttpAnswer:
        if self._draining:
            return _refusal(503, "the engine is stopping")
        try:
            asked = completions.parse(body)
        except completions.CompletionError as error:
            return _refusal(400, str(error))
        if asked.model not in ("", self._model):
            return _refusal(404, f"the model {asked.model!r} does not exist")
        sequence = Sequence(
            number=next(self._numbers),
            prompt_tokens=asked.prompt_tokens,
            max_tokens=asked.max_tokens,
            arrived_ns=time.monotonic_ns(),
            remote_prompt=asked.remote_prompt,
        )
        if not self._scheduler.fits(sequence):
            tokens = asked.prompt_tokens + asked.max_tokens
            return _refusal(400, f"{tokens} tokens are more than the KV cache holds")
        await self._steps.complete(sequence)
        request_id = f"cmpl-{uuid.uuid4().hex}"
        return _json(
            200,
            completions.answer(asked, model=self._model, engine=self._name, request_id=request_id),
        )


def _json(status: int, body: Mapping[str, object]) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(body).encode())


def _refusal(status: int, why: str) -> HttpAnswer:
    return _json(status, {"error": {"message": why, "code": status}})
