"""The points that are measured on purpose: parts of steps alone, and together."""

from __future__ import annotations

import random
import time
from typing import Any

import click
from bench.gpu_steps.watch import StepWatch

# Documents that decoding requests continue: those of the first group are long, the others short.
# Their KV stays in the prefix cache, so that a batch begins without computing it again.
DOCUMENTS = ((64, 3072), (192, 1024))
KV_TOKENS = (128, 1024, 3072)
WRITERS = (1, 8, 32, 64, 128, 256)
PASTS = (0, 2048, 7936)
CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WORDS = 120_000
_BLOCK = 16
_ROUNDS = 4


class Sweep:
    """Measures the points round after round, until the time is over.

    The first round also warms up: every shape of step is new to the engine there.
    """

    def __init__(
        self, engine: Any, watch: StepWatch, dice: random.Random, max_tokens: int, *, small: bool
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._dice = dice
        self._number = 0
        self._max_tokens = max_tokens
        self._chunks = tuple(each for each in CHUNKS if each <= max_tokens)
        self._kv, self._writers, self._pasts = KV_TOKENS, WRITERS, PASTS
        self._groups = DOCUMENTS
        if small:
            self._chunks, self._writers, self._pasts = (16, 64), (1, 4), (0, 64)
            self._kv, self._groups = (32, 64), ((4, 64),)
        self._documents = [
            self._words(length) for count, length in self._groups for _ in range(count)
        ]
        self._past = self._words(max(self._pasts))

    def run(self, seconds: float) -> None:
        """Measure until all rounds are done, or the time is over."""
        over = time.monotonic() + seconds
        self._watch.part = "fill"
        for document in [*self._documents, self._past]:
            self._add(document, 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        for turn in range(_ROUNDS):
            for kv, writers in self._batches():
                if time.monotonic() > over:
                    click.echo(f"time over in round {turn} at {writers} x {kv}")
                    return
                self._batch(turn, kv, writers)
            click.echo(f"round {turn} done")

    def _batches(self) -> list[tuple[int, int]]:
        found = [(0, 0)]
        for kv in self._kv:
            enough = sum(len(document) >= kv for document in self._documents)
            found += [(kv, writers) for writers in self._writers if writers <= enough]
        return found

    def _batch(self, turn: int, kv: int, writers: int) -> None:
        watch, engine = self._watch, self._engine
        watch.part = f"begin-{turn}"
        chosen = [each for each in self._documents if len(each) >= kv][:writers]
        names = [self._add([*each[: kv - 1], self._word()], 4096) for each in chosen]
        while engine.has_unfinished_requests() and any(
            each.num_output_tokens == 0 for each in self._requests()
        ):
            engine.step()
        watch.part = f"sweep-{turn}"
        for _ in range(4 if writers else 0):
            engine.step()
        for past in self._pasts:
            for chunk in self._chunks:
                self._prompts(past, [chunk])
        for pieces in (2, 4, 16):
            for chunk in self._chunks[2:]:
                self._prompts(0, [chunk // pieces] * pieces)
        engine.abort_request(names)
        watch.part = "end"
        while engine.has_unfinished_requests():
            engine.step()

    def _prompts(self, past: int, chunks: list[int]) -> None:
        room = self._max_tokens - len(self._requests())
        if sum(chunks) > room:
            chunks = [room]
        for chunk in chunks:
            self._add([*self._past[:past], *self._words(chunk)], 1)
        self._engine.step()
        if self._requests():
            self._engine.step()

    def _requests(self) -> list[Any]:
        scheduler = self._engine.engine_core.engine_core.scheduler
        return [*scheduler.running, *scheduler.waiting]

    def _add(self, tokens: list[int], output_tokens: int) -> str:
        self._number += 1
        name = f"r{self._number}"
        add(self._engine, name, tokens, output_tokens)
        return name

    def _word(self) -> int:
        return self._dice.randrange(3, WORDS)

    def _words(self, count: int) -> list[int]:
        return self._dice.choices(range(3, WORDS), k=count)


def add(engine: Any, name: str, tokens: list[int], output_tokens: int) -> None:
    """Queue a request of these tokens that ends after `output_tokens`."""
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=output_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )
    engine.add_request(name, {"prompt_token_ids": tokens}, params)
