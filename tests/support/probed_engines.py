"""A fake engine for probes: batches in virtual time, a page that counts like vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from disagg_cluster.tune.completions import Prompt, SmallVocabularyError, WrittenToken
from disagg_exporter.model import EnginePage, Total
from disagg_exporter.model.serving import ServingCounts

WAY_SECONDS = 0.001
"""From the client to the engine, and back."""


def affine(base_seconds: float, token_seconds: float) -> Callable[[int], float]:
    """Return a step price with a constant part and a part per token."""
    return lambda tokens: base_seconds + token_seconds * tokens


@dataclass(slots=True)
class FakeEngine:
    """Runs steps priced by tokens, at most `step_tokens` in each; longer prompts are cut.

    `first_alone`: as in vLLM, a request that arrives while idle starts a step alone, during which
    the others of the same call arrive. `requests` is the limit of running requests, `vocabulary`
    the number of token ids, `running` the requests of other clients. `schedules_ahead`: a step is
    scheduled, with which the time of its requests begins, while the one before runs, as by vLLM
    with async scheduling, once that one has been launched, which takes `launch_seconds`; a step
    that begins while nothing runs costs its `resting_price`, with its launch. `ranks`:
    data-parallel ranks deal prompts out among them and run their steps at the same time, and its
    page clocks none.
    """

    price: Callable[[int], float]
    step_tokens: int = 8192
    first_alone: bool = True
    has_page: bool = True
    requests: int = 256
    vocabulary: int = 128_000
    running: int = 0
    schedules_ahead: bool = False
    launch_seconds: float = 0.0
    resting_price: Callable[[int], float] | None = None
    ranks: int = 1
    now: float = 0.0
    sent: list[Prompt] = field(default_factory=list)
    hung_up: int = 0
    _steps: int = 0
    _first_tokens: int = 0
    _first_seconds: float = 0.0

    def page(self) -> EnginePage | None:
        if not self.has_page:
            return None
        totals = {
            Total.FIRST_TOKEN_REQUESTS: float(self._first_tokens),
            Total.FIRST_TOKEN_SECONDS: self._first_seconds,
        }
        return EnginePage(
            "vllm",
            0,
            running=float(self.running),
            waiting=0.0,
            generation_tokens_total=float(self._first_tokens),
            steps_total=None if self.ranks > 1 else float(self._steps),
            serving=ServingCounts(totals),
            ranks=self.ranks,
        )

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        if any(max(prompt) >= self.vocabulary for prompt in prompts):
            raise SmallVocabularyError("out of vocabulary")
        self.sent += prompts
        self.now += WAY_SECONDS
        left = {number: len(prompt) for number, prompt in enumerate(prompts)}
        written = dict.fromkeys(left, 0)
        began: dict[int, float] = {}
        batch = 1 if self.first_alone else len(prompts)
        try:
            while any(count < max_tokens for count in written.values()):
                yield from self._step(left, written, began, batch, max_tokens)
                batch = len(prompts)
        except GeneratorExit:
            self.hung_up += 1
            raise

    def _step(
        self,
        left: dict[int, int],
        written: dict[int, int],
        began: dict[int, float],
        batch: int,
        max_tokens: int,
    ) -> Generator[WrittenToken]:
        room, computed, ended = self.step_tokens, 0, []
        unfinished = [n for n in left if written[n] < max_tokens]
        begun, price = self.now, self.price if began else self.resting_price or self.price
        for number in unfinished[: min(batch, self.requests)]:
            began.setdefault(number, begun)
            tokens = min(left[number], room) if left[number] else min(1, room)
            room, computed = room - tokens, computed + tokens
            left[number] = max(left[number] - tokens, 0)
            if not left[number] and tokens:
                ended.append(number)
        self.now += price(computed // self.ranks)
        for number in left if self.schedules_ahead else ():
            began.setdefault(number, min(begun + self.launch_seconds, self.now))
        # Like vLLM's histogram, which counts steps that produce output.
        self._steps += bool(ended)
        for number in ended:
            if not written[number]:
                self._first_tokens += 1
                self._first_seconds += self.now - began[number]
            written[number] += 1
        for number in ended:
            is_last = written[number] >= max_tokens
            yield WrittenToken(number, self.now + WAY_SECONDS, is_last)
