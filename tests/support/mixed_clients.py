"""Clients of one engine that does both phases: prompts of all sizes, so that steps mix."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

_PROMPT_TOKENS = (20, 200, 1000, 3000)
_TIMEOUT_SECONDS = 30.0


class MixedClients:
    """Threads that send one completion after the other to an engine."""

    def __init__(self, url: str, model: str, count: int = 6) -> None:
        self.completed = 0
        self.failures: list[str] = []
        self._url, self._model = url, model
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            tokens = _PROMPT_TOKENS[number % len(_PROMPT_TOKENS)]
            body = {
                "model": self._model,
                "prompt": f"{number:<8}" + "word" * tokens,
                "max_tokens": 16,
            }
            request = urllib.request.Request(
                f"{self._url}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                    answer.read()
            except (OSError, urllib.error.URLError) as error:
                self.failures.append(str(error))
                self._stop.wait(0.05)
            else:
                self.completed += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[MixedClients]:
        """Send until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
