"""HTTP client of the probed engine: its models, its metrics page, and streamed completions."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Protocol, Self

from disagg_cluster.prometheus.http_client import TransportError
from disagg_cluster.prometheus.http_session import HttpSession
from disagg_cluster.tune.completions import (
    EngineRefusalError,
    Prompt,
    WrittenToken,
    completion_request,
    refusal,
    served_models,
    written_prompts,
)
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.fronts import parse_front_page
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import EnginePage

_PAGE_BYTES = 8 << 20
_ANSWER_BYTES = 256 << 20
_DEADLINE_SECONDS = 30.0


class EngineDownError(DisaggError):
    """Nothing answers, or the engine has stopped answering."""


class NotAnEngineError(DisaggError):
    """The server is a router or frontend, not an engine."""


class ProbedEngine(Protocol):
    """What a probe needs from an engine."""

    def page(self) -> EnginePage | None:
        """Its current metrics page; None if it has none."""

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        """Request tokens for each prompt, and yield each as it arrives.

        Closing the generator disconnects, and the engine aborts the rest.

        Raises:
            EngineRefusalError: It rejects the request.
            EngineDownError: It does not answer, or not in time.
        """


class CompletionServer:
    """An engine behind an OpenAI API.

    Args:
        url: Its root URL.
        session: The HTTP session.

    Attributes:
        model: The model to request; empty until set.
    """

    def __init__(self, url: str, session: HttpSession) -> None:
        self.url = url.rstrip("/")
        self.model = ""
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    def models(self) -> dict[str, int | None]:
        """The models it serves, with the most tokens of a request where reported.

        Raises:
            EngineRefusalError: It has no OpenAI API, or denies access.
            EngineDownError: Nothing answers.
        """
        url = f"{self.url}/v1/models"
        status, body = self._get(url)
        if status != 200:
            raise refusal(status, body, url)
        return served_models(body)

    def page(self) -> EnginePage | None:
        """Its metrics page; None if it has none in a known format.

        Raises:
            NotAnEngineError: The page is a router's or a frontend's.
            EngineDownError: Nothing answers.
        """
        t_ns = time.monotonic_ns()
        status, body = self._get(f"{self.url}/metrics")
        if status != 200:
            return None
        try:
            return parse_page(body, t_ns)
        except PageError:
            self._refuse_fronts(body, t_ns)
            return None

    def _refuse_fronts(self, body: bytes, t_ns: int) -> None:
        if not body.strip():
            return
        try:
            front = parse_front_page(body, t_ns)
        except PageError:
            return
        raise NotAnEngineError(
            f"{self.url} is a {front.source.value}, by its page: it spreads requests over engines. "
            "Probe one of them: --engine with its own address"
        )

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        """Request tokens for each prompt, and yield each as it arrives; see `ProbedEngine`."""
        url = f"{self.url}/v1/completions"
        body = completion_request(self.model, prompts, max_tokens)
        try:
            with self._session.post(url, body, deadline_seconds, _ANSWER_BYTES) as answer:
                if answer.status != 200:
                    raise refusal(answer.status, answer.body, url)
                for line in answer.lines:
                    now_seconds = time.monotonic()
                    for written in written_prompts(line, url):
                        if not 0 <= written.prompt < len(prompts):
                            raise EngineRefusalError(f"{url} answers prompts that it was not sent")
                        yield WrittenToken(written.prompt, now_seconds, written.is_last)
        except TransportError as error:
            raise EngineDownError(f"{url}: {error}") from None

    def _get(self, url: str) -> tuple[int, bytes]:
        try:
            response = self._session.get(url, _DEADLINE_SECONDS, _PAGE_BYTES)
        except TransportError as error:
            raise EngineDownError(f"{url}: {error}") from None
        return response.status, response.body
