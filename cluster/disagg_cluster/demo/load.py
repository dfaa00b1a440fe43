"""A load generator for a set of prefill and decode engines, which acts as the router."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from disagg_cluster.demo.disaggregated_client import NIXL, CompletionError, complete
from disagg_cluster.demo.nodefile import LoadShape
from disagg_cluster.demo.pools import PoolUrls
from disagg_cluster.simulator.load import Mix

_TOKEN_TEXT = "word"  # four characters: about a token to every engine, exactly one to a stand-in
_LONGEST_PAUSE_SECONDS = 1.0  # an arrival drawn at a low rate must not outlive a change of rate

Send = Callable[[str, str, Mix], object]
"""Completes one request over a prefill and a decode URL; raises `CompletionError`."""


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Counts of the load since it began.

    `skipped` arrivals were dropped because as many requests as allowed were in flight: the load is
    more than the engines can serve.
    """

    sent: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    in_flight: int = 0


def send_through(model: str, *, timeout_seconds: float = 30.0) -> Send:
    """Return a `Send` that transfers the KV like vLLM's NixlConnector.

    No two prompts begin alike: an engine that caches prefixes would compute only the first.
    """
    numbers = itertools.count()

    def send(prefill_url: str, decode_url: str, mix: Mix) -> object:
        prompt = f"{next(numbers):<8}{_TOKEN_TEXT * round(mix.prompt_tokens)}"
        output_tokens = round(mix.output_tokens)
        return complete(
            prefill_url, decode_url, model, prompt, output_tokens, NIXL, timeout_seconds
        )

    return send


class LoadGenerator:
    """Sends requests at the times and sizes of a `LoadShape` until it is stopped.

    Arrivals are random (Poisson, seeded); the engines of each kind take turns. A request that fails
    is counted and the load continues, as engines may be restarting.

    Args:
        pools: The engines that take requests until `follow` sets another source.
        send: Sends one request.
        shape: How the load changes over time.
        concurrency: The most requests in flight.
    """

    def __init__(
        self,
        pools: PoolUrls,
        send: Send,
        *,
        shape: LoadShape | None = None,
        concurrency: int = 64,
    ) -> None:
        self._usual = pools
        self._pools: Callable[[], PoolUrls] = lambda: pools
        self._send = send
        self._shape = shape or LoadShape()
        self._concurrency = concurrency
        self._random = random.Random(0)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._counts = LoadCounts()
        self._pace: threading.Thread | None = None
        self._requests: set[threading.Thread] = set()

    def follow(self, pools: Callable[[], PoolUrls]) -> None:
        """Ask at each arrival which engines take requests; the initial ones for an empty kind."""
        self._pools = pools

    def start(self) -> None:
        """Begin the load; call once."""
        self._pace = threading.Thread(target=self._run, name="load", daemon=True)
        self._pace.start()

    def stop(self, deadline_seconds: float = 5.0) -> None:
        """Send nothing more and wait for what is in flight, at most `deadline_seconds`."""
        self._stopping.set()
        if self._pace is not None:
            # It waits for nothing but the event just set, and starts no request after it.
            self._pace.join()
        until = time.monotonic() + deadline_seconds
        with self._lock:
            in_flight = tuple(self._requests)
        for request in in_flight:
            request.join(max(0.0, until - time.monotonic()))

    def counts(self) -> LoadCounts:
        """Return the counts so far."""
        with self._lock:
            return self._counts

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            mix = self._shape.rate(time.monotonic() - began)
            pause = self._random.expovariate(mix.requests_per_second)
            if self._stopping.wait(min(pause, _LONGEST_PAUSE_SECONDS)):
                return
            # A pause cut short brings no request: it is drawn again, which does not change
            # arrivals.
            if pause <= _LONGEST_PAUSE_SECONDS:
                self._arrive(mix)

    def _arrive(self, mix: Mix) -> None:
        pools = self._pools().or_else(self._usual)
        with self._lock:
            counts = self._counts
            if counts.in_flight >= self._concurrency:
                self._counts = replace(counts, skipped=counts.skipped + 1)
                return
            self._counts = replace(counts, sent=counts.sent + 1, in_flight=counts.in_flight + 1)
            prefill_url = pools.prefill[counts.sent % len(pools.prefill)]
            decode_url = pools.decode[counts.sent % len(pools.decode)]
            request = threading.Thread(
                target=self._request, args=(prefill_url, decode_url, mix), daemon=True
            )
            self._requests.add(request)
            # Started before it is listed: `stop` joins what it finds.
            request.start()

    def _request(self, prefill_url: str, decode_url: str, mix: Mix) -> None:
        completed = 0
        try:
            self._send(prefill_url, decode_url, mix)
            completed = 1
        except CompletionError:
            pass  # counted below; which engine was down is in its supervisor's log
        finally:
            with self._lock:
                counts = self._counts
                self._counts = replace(
                    counts,
                    completed=counts.completed + completed,
                    failed=counts.failed + 1 - completed,
                    in_flight=counts.in_flight - 1,
                )
                self._requests.discard(threading.current_thread())
