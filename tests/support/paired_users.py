"""Users of a pair of pools, who use prefill engines in turn; and faults of an engine."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from disagg_cluster.demo.disaggregated_client import CompletionError, complete, complete_on_one
from disagg_cluster.host.processes.procfs import children_of, command_line
from support.vllm_nodes import MODEL_NAME

REQUEST_SECONDS = 180.0
_WORKER_TITLE = "VLLM::Worker"


class PairedUsers:
    """Each sends a request, waits for the whole answer, thinks, and uses the next prefill engine.

    Args:
        prefill_urls: The prefill engines, used in turn.
        decode_url: The decode engine.
        connector: The KV connector between them.
        users: Number of users.
        think_seconds: Mean think time.
    """

    def __init__(
        self,
        prefill_urls: Sequence[str],
        decode_url: str,
        connector: str,
        *,
        users: int = 3,
        think_seconds: float = 0.3,
    ) -> None:
        self._prefill_urls = prefill_urls
        self._decode_url = decode_url
        self._connector = connector
        self._think_seconds = think_seconds
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(users)]
        self.answered = 0

    @contextlib.contextmanager
    def asking(self) -> Iterator[PairedUsers]:
        """Send requests until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join(REQUEST_SECONDS)

    def _ask(self, number: int) -> None:
        rng = random.Random(number)
        turn = number
        while not self._ending.is_set():
            turn += 1
            url = self._prefill_urls[turn % len(self._prefill_urls)]
            asked = url, self._decode_url, MODEL_NAME, prompt(rng), 4, self._connector
            try:
                complete(*asked, REQUEST_SECONDS)
            except CompletionError as error:
                sys.stderr.write(f"user {number}: {error}\n")
            else:
                self.answered += 1
            self._ending.wait(rng.expovariate(1 / self._think_seconds))


def prompt(rng: random.Random) -> str:
    """Return a prompt that no cache knows: 20 to 60 numbers of some tokens each."""
    return " ".join(str(rng.randrange(10**6)) for _ in range(rng.randint(20, 60)))


@contextlib.contextmanager
def crowd(url: str, users: int) -> Iterator[None]:
    """Load one prefill engine with a number of users without pauses, until the block ends."""
    ending = threading.Event()

    def ask(number: int) -> None:
        rng = random.Random(f"crowd {number}")
        while not ending.is_set():
            with contextlib.suppress(CompletionError):  # it is overloaded on purpose
                complete_on_one(url, MODEL_NAME, prompt(rng), 1, REQUEST_SECONDS)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join(REQUEST_SECONDS)


@contextlib.contextmanager
def stuttering(pid: int, stopped_seconds: float, running_seconds: float) -> Iterator[None]:
    """Alternately stop a process and let it run, until the block ends."""
    ending = threading.Event()

    def stutter() -> None:
        while not ending.is_set():
            os.kill(pid, signal.SIGSTOP)
            ending.wait(stopped_seconds)
            os.kill(pid, signal.SIGCONT)
            ending.wait(running_seconds)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def worker_below(pid: int) -> int:
    """Return the computing process of an engine, which vLLM calls its worker.

    Raises:
        ProcessLookupError: There is none.
    """
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        if "".join(command_line(each)[:1]).startswith(_WORKER_TITLE):
            return each
        waiting.extend(children_of(each))
    raise ProcessLookupError(f"no {_WORKER_TITLE} below {pid}")


@contextlib.contextmanager
def slow_link(file: Path, bytes_per_second: int) -> Iterator[None]:
    """Limit the rate of KV from engines under `link_shim.c` until the block ends."""
    file.write_text(str(bytes_per_second), encoding="ascii")
    try:
        yield
    finally:
        file.unlink()


def warm_up(prefill_url: str, decode_url: str, connector: str) -> None:
    """Send requests until one succeeds: a fresh NIXL pair was observed to drop its first.

    Raises:
        CompletionError: None of three succeeded.
    """
    for attempt in range(3):
        try:
            asked = (prefill_url, decode_url, MODEL_NAME, f"warm up {attempt}", 4, connector)
            complete(*asked, REQUEST_SECONDS)
        except CompletionError as error:
            sys.stderr.write(f"warm-up request {attempt}: {error}\n")
            if attempt == 2:
                raise
        else:
            return
