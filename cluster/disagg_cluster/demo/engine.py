"""The step model of a stand-in engine: continuous batching with chunked prefill, at stated costs.

No clock, no socket, no thread: the caller says what time it is. `begin` decides what the next
step holds and how long it lasts, `finish` applies it at the time it really ended; `step` does
both in virtual time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter

from disagg_cluster.demo.costs import Costs, Limits
from disagg_cluster.demo.steps import Load, Request, StepOutcome, StepPlan

_NS = 1_000_000_000


@dataclass(slots=True)
class Engine:
    """A stand-in engine between two steps; feed it with `submit`, move it with `step`."""

    costs: Costs = field(default_factory=Costs)
    limits: Limits = field(default_factory=Limits)
    _waiting: deque[Request] = field(default_factory=deque)
    _deferred: list[tuple[int, Request]] = field(default_factory=list)
    _running: list[Request] = field(default_factory=list)

    def submit(self, request: Request) -> None:
        """Queue `request`; one with a remote prompt waits first until its KV has travelled."""
        if request.remote_prompt:
            arrival_ns = request.arrived_ns + self.costs.transfer_ns(request.prompt_tokens)
            self._deferred.append((arrival_ns, request))
        else:
            self._waiting.append(request)

    def fits(self, request: Request) -> bool:
        """Whether `request` could ever be admitted; one that cannot must not be submitted."""
        return request.room_tokens <= self.limits.kv_tokens

    def abort(self, request: Request) -> None:
        """Forget `request`, wherever it is; a step under way still ends as it was planned."""
        self._deferred = [entry for entry in self._deferred if entry[1] is not request]
        self._running = [other for other in self._running if other is not request]
        self._waiting = deque(other for other in self._waiting if other is not request)

    def load(self) -> Load:
        """How many requests there are, and how full the KV cache is."""
        held = sum(request.held_tokens for request in self._running)
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            deferred=len(self._deferred),
            kv_usage_ratio=min(1.0, held / self.limits.kv_tokens),
        )

    def next_arrival_ns(self) -> int | None:
        """When the next KV transfer ends, or None when none is under way."""
        return min((arrival_ns for arrival_ns, _ in self._deferred), default=None)

    def step(self, now_ns: int) -> StepOutcome | None:
        """Run one step in virtual time, from `now_ns`; None when there is nothing to do."""
        plan = self.begin(now_ns)
        return None if plan is None else self.finish(plan, plan.begun_ns + plan.planned_ns)

    def begin(self, now_ns: int) -> StepPlan | None:
        """Admit what fits and choose the work of the next step; None when there is none."""
        self._admit(now_ns)
        decoding = tuple(r for r in self._running if r.output_tokens > 0)
        starting = [r for r in self._running if r.output_tokens == 0]
        received = tuple(r for r in starting if r.remote_prompt)
        budget = self.limits.step_tokens - len(decoding) - len(received)
        chunks: list[tuple[Request, int]] = []
        for request in starting:
            chunk = min(request.prompt_tokens - request.computed_tokens, budget)
            if not request.remote_prompt and chunk > 0:
                chunks.append((request, chunk))
                budget -= chunk
        if not (decoding or received or chunks):
            return None
        writing = decoding + received
        planned_ns = self.costs.step_ns(
            prefill_tokens=sum(chunk for _, chunk in chunks),
            decode_requests=len(writing),
            kv_tokens=sum(request.held_tokens for request in writing),
        )
        return StepPlan(now_ns, planned_ns, tuple(chunks), received, decoding)

    def finish(self, plan: StepPlan, now_ns: int) -> StepOutcome:
        """Apply the step of `plan`, which ended at `now_ns`, and say what it did."""
        ended = [r for r, chunk in plan.chunks if r.computed_tokens + chunk >= r.prompt_tokens]
        for request, chunk in plan.chunks:
            request.computed_tokens += chunk
        firsts = (*ended, *plan.received)
        inter_token = tuple((now_ns - r.last_token_ns) / _NS for r in plan.decoding)
        for request in (*firsts, *plan.decoding):
            request.output_tokens += 1
            request.last_token_ns = now_ns
        finished = tuple(r for r in self._running if r.output_tokens >= r.max_tokens)
        self._running = [r for r in self._running if r.output_tokens < r.max_tokens]
        return StepOutcome(
            begun_ns=plan.begun_ns,
            ended_ns=now_ns,
            context_requests=len(plan.chunks) + len(plan.received),
            context_tokens=sum(chunk for _, chunk in plan.chunks) + len(plan.received),
            generation_requests=len(plan.decoding),
            generation_tokens=len(plan.decoding),
            computed_tokens=sum(request.prompt_tokens for request in ended),
            external_tokens=sum(request.prompt_tokens for request in plan.received),
            new_tokens=len(firsts) + len(plan.decoding),
            first_token_seconds=tuple((now_ns - r.arrived_ns) / _NS for r in firsts),
            inter_token_seconds=inter_token,
            finished=finished,
        )

    def _admit(self, now_ns: int) -> None:
        """Move requests into the batch: first those whose KV has arrived, then in order."""
        arrived = sorted((e for e in self._deferred if e[0] <= now_ns), key=itemgetter(0))
        self._deferred = [entry for entry in self._deferred if entry[0] > now_ns]
        for _, request in reversed(arrived):
            request.computed_tokens = request.prompt_tokens
            self._waiting.appendleft(request)
        room = self.limits.kv_tokens - sum(request.room_tokens for request in self._running)
        while self._waiting and len(self._running) < self.limits.running_requests:
            room -= self._waiting[0].room_tokens
            if room < 0:
                return
            self._running.append(self._waiting.popleft())
