"""Chooses an engine's next work: continuous batching like vLLM's scheduler.

First running requests, each with the one token it lacks or the next chunk of its prompt, within one
token budget; then, in order of arrival, waiting ones, as long as there is budget and room. When a
running request finds no room in the cache, the last one to arrive is returned to the front of the
queue and loses what it has computed (recompute).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from disagg_cluster.simulator.engine.batch import (
    SchedulerLimits,
    SchedulerState,
    Sequence,
    StepBatch,
)
from disagg_cluster.simulator.engine.kv_cache import KvCache


class Scheduler:
    """The queues of one engine and its cache. It has no clock; `now_ns` is only recorded."""

    def __init__(self, limits: SchedulerLimits, *, prefix_caching: bool = True) -> None:
        self.limits = limits
        self.cache = KvCache(limits.kv_blocks, limits.block_tokens)
        self.running: list[Sequence] = []
        self.to_fetch: list[Sequence] = []
        self.prefix_caching = prefix_caching
        self._submitted: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._deferred: dict[int, Sequence] = {}
        self._arrived: deque[Sequence] = deque()
        self._kept: dict[int, Sequence] = {}

    def fits(self, sequence: Sequence) -> bool:
        """Return whether the cache could ever hold it; otherwise it must not be submitted."""
        whole = sequence.prompt_tokens + sequence.max_tokens
        return self.cache.blocks_of(whole) <= self.cache.blocks

    def submit(self, sequence: Sequence) -> None:
        """Add a request; it is queued, and counted, from the next step on."""
        self._submitted.append(sequence)

    def receive(self, number: int) -> None:
        """Record that the KV of a request in `to_fetch` has arrived."""
        sequence = self._deferred.pop(number)
        sequence.received = True
        sequence.computed = sequence.prompt_tokens - 1
        self._arrived.append(sequence)

    def compute_locally(self, number: int) -> None:
        """Record that the KV of a request will not arrive: its prompt is computed here."""
        sequence = self._deferred.pop(number)
        sequence.remote_prompt = False
        sequence.external_tokens = 0
        self._arrived.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Remove a request, wherever it is; the current step still ends as planned."""
        sequence.aborted = True
        self._deferred.pop(sequence.number, None)
        for queue in (self.running, self._submitted, self._waiting, self._arrived):
            if sequence in queue:
                queue.remove(sequence)
        self.cache.release(sequence.holding)

    def release_kv(self, number: int) -> bool:
        """Free the KV kept for a request that has ended; return False if there is none."""
        sequence = self._kept.pop(number, None)
        if sequence is not None:
            self.cache.release(sequence.holding)
        return sequence is not None

    def resize(self, limits: SchedulerLimits) -> None:
        """Use other limits from the next step on; a cache that is too full now empties by use."""
        self.limits = limits
        self.cache.blocks = limits.kv_blocks

    def state(self) -> SchedulerState:
        """Return the number of requests, and how full the cache is."""
        return SchedulerState(
            running=len(self.running),
            waiting=len(self._waiting),
            deferred=len(self._deferred) + len(self._arrived),
            kv_usage_ratio=self.cache.usage_ratio,
        )

    def schedule(self, now_ns: int) -> StepBatch | None:
        """Choose the work of the next step; None when there is none."""
        self._waiting.extend(self._submitted)
        self._submitted.clear()
        batch = StepBatch()
        budget = self._continue_running(batch)
        if batch.preempted and not (batch.context or batch.writing):
            budget = self.limits.step_tokens
        elif batch.preempted:
            return batch
        if self._arrived:
            self._admit(self._arrived, batch, budget, now_ns)
        if self._waiting and not self._arrived:
            self._admit(self._waiting, batch, self._budget_left(batch), now_ns)
        return batch if batch.context or batch.writing else None

    def end(self, finished: Iterable[Sequence]) -> None:
        """Remove the requests that have generated their last token."""
        for sequence in finished:
            if sequence.kept:
                self._kept[sequence.number] = sequence
            else:
                self.cache.release(sequence.holding)
        self.running = [sequence for sequence in self.running if sequence.left]

    def _budget_left(self, batch: StepBatch) -> int:
        taken = len(batch.writing) + sum(chunk for _, chunk in batch.context)
        return self.limits.step_tokens - taken

    def _continue_running(self, batch: StepBatch) -> int:
        budget = self.limits.step_tokens
        hold, enter = self.cache.hold, batch.enter
        # Those that are preempted on the way are the last ones, which it has not come to.
        for sequence in self.running:
            if not budget:
                break
            tokens = min(sequence.tokens - sequence.computed, budget)
            until = sequence.computed + tokens
            if not (hold(sequence.holding, until) or self._make_room(sequence, until, batch)):
                break
            enter(sequence, tokens)
            budget -= tokens
        return budget

    def _make_room(self, sequence: Sequence, tokens: int, batch: StepBatch) -> bool:
        """Grow a running request, preempting those that arrived later, and finally itself."""
        while not self.cache.hold(sequence.holding, tokens):
            victim = self.running.pop()
            self.cache.release(victim.holding)
            victim.computed = 0
            victim.received = victim.remote_prompt = False
            victim.preemptions += 1
            batch.preempted += 1
            self._waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, queue: deque[Sequence], batch: StepBatch, budget: int, now_ns: int) -> None:
        while queue and budget and len(self.running) < self.limits.running_requests:
            sequence = queue[0]
            if sequence.holding.own_blocks == 0:
                self._look_up(sequence)
            fetching = sequence.remote_prompt and not sequence.received
            tokens = sequence.missing if fetching else min(sequence.missing, budget)
            refused = fetching and not self._leaves_reserve(tokens)
            if refused or not self.cache.hold(sequence.holding, sequence.computed + tokens):
                if not sequence.received:
                    self.cache.release(sequence.holding)
                    sequence.computed = 0
                return
            queue.popleft()
            if sequence.scheduled_ns is None:
                sequence.scheduled_ns = now_ns
            if fetching:
                sequence.external_tokens = sequence.missing
                self._deferred[sequence.number] = sequence
                self.to_fetch.append(sequence)
                continue
            self.running.append(sequence)
            batch.enter(sequence, tokens)
            budget -= tokens

    def _leaves_reserve(self, tokens: int) -> bool:
        """Return whether an arriving prompt leaves the room reserved for others' output."""
        here = len(self.running) + len(self._deferred) + len(self._arrived)
        tokens += self.limits.reserved_output_tokens * here
        return self.cache.blocks_of(tokens) <= self.cache.blocks - self.cache.used_blocks

    def _look_up(self, sequence: Sequence) -> None:
        """Skip what the cache has of the prompt; its last token is always computed."""
        prefix = sequence.prefix
        if prefix is None or not self.prefix_caching:
            return
        most = min(prefix.tokens, sequence.prompt_tokens - 1)
        sequence.computed = self.cache.find(prefix.identity, sequence.holding, most)
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
