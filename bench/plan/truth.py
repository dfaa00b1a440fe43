"""The fate of each request on a day: a simulation without the planner's formulas.

Prefill engines compute prompts one by one, first come, first served, each for as long as its steps
take by the price table. Decode engines share all requests evenly; a step takes the table's time for
its batch and KV, in slots of a second; a request without room in cache or batch waits. Backlogs
carry over from minute to minute. An engine serves a lead time after it was ordered; one that is
given up finishes its work and is paid for until it is drained.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from bench.plan.days import Day

from disagg_cluster.planner.capacity.priced_costs import PricedCosts
from disagg_cluster.planner.history.load_series import Floats

LEAD_MINUTES = 5
DRAIN_MINUTES = 1
_LENGTHS = 64


@dataclass(slots=True)
class EnginePool:
    """Engines of one role: serving, starting (when they will serve), draining (until when)."""

    gpus: int
    serving: int
    starting: list[int] = field(default_factory=list)
    draining: list[int] = field(default_factory=list)
    gpu_minutes: int = 0

    @property
    def ordered(self) -> int:
        """Return the engines that serve or are starting."""
        return self.serving + len(self.starting)

    @property
    def held_gpus(self) -> int:
        """Return the GPUs in use."""
        return self.gpus * (self.ordered + len(self.draining))

    def order(self, engines: int, minute: int) -> None:
        """Set the desired number of engines; those still starting are given up first."""
        while self.ordered > max(1, engines):
            if self.starting:
                self.starting.pop()
            else:
                self.serving -= 1
                self.draining.append(minute + DRAIN_MINUTES)
        self.starting += [minute + LEAD_MINUTES] * (engines - self.ordered)

    def advance(self, minute: int) -> None:
        """Begin a minute: engines due to start serve, drained ones are gone."""
        self.serving += sum(at <= minute for at in self.starting)
        self.starting = [at for at in self.starting if at > minute]
        self.draining = [at for at in self.draining if at > minute]
        self.gpu_minutes += self.held_gpus


class ModelTruth:
    """One model's engines through a day.

    After each minute `prefill_busy` is the share of time in which serving prefill engines computed,
    and `decode_requests` how many requests decode or wait for it.
    """

    def __init__(self, day: Day, prefill: int, decode: int) -> None:
        costs = day.served.costs()
        self.day = day
        self.prefill = EnginePool(day.served.gpus, prefill)
        self.decode = EnginePool(day.served.gpus, decode)
        self.prefill_busy = 0.0
        self.decode_requests = 0
        arrivals = day.arrivals
        count = len(arrivals.seconds)
        self._arrived = arrivals.seconds.tolist()
        self._service = _service_seconds(costs, arrivals.prompt_tokens).tolist()
        self._output = arrivals.output_tokens.tolist()
        self._context = (arrivals.prompt_tokens + arrivals.output_tokens / 2).tolist()
        self._next = 0
        self._free = [0.0] * prefill
        # Prompts in the order in which they are ready; the first `_taken` have left the queue.
        self._ready: list[tuple[float, int]] = []
        self._taken = 0
        self._active: list[tuple[float, int]] = []
        self._tokens = self._kv = 0.0
        self._ttft = [np.inf] * count
        self._joined = [0.0] * count
        self._itl = [np.inf] * count
        self._room_kv = float(costs.shape.kv_tokens or np.inf)
        self._room_requests = costs.shape.max_num_seqs
        self._base, self._slope = _step_lines(costs, day)
        self._step = self._base[1]

    def minute(self, minute: int) -> None:
        """Simulate a minute."""
        for pool in (self.prefill, self.decode):
            pool.advance(minute)
        self._compute_prompts(minute * 60.0)
        for second in range(60):
            self._decode_second(minute * 60.0 + second)
        ready_by_now = bisect_right(self._ready, (minute * 60.0 + 60.0, np.inf))
        self.decode_requests = len(self._active) + ready_by_now - self._taken

    @property
    def decode_running(self) -> int:
        """Return the requests that decode now, on all engines."""
        return len(self._active)

    @property
    def decode_held_tokens(self) -> float:
        """Return the KV tokens that they hold."""
        return self._kv

    @property
    def decode_kv_ratio(self) -> float:
        """Return the share of the decode engines' cache that requests hold now."""
        return self._kv / (self._room_kv * self.decode.serving)

    @property
    def ttft_seconds(self) -> Floats:
        """Return each request's time to first token; infinite if there was none."""
        return np.array(self._ttft)

    @property
    def itl_seconds(self) -> Floats:
        """Return the mean time between each request's tokens; infinite if it did not end."""
        return np.array(self._itl)

    def within_targets(self) -> Floats:
        """Return whether each request was within both targets, `0.0` or `1.0`."""
        targets = self.day.served.targets
        kept = (self.ttft_seconds <= targets.ttft_seconds) & (
            self.itl_seconds <= targets.itl_seconds
        )
        return kept.astype(np.float64)

    def _compute_prompts(self, start: float) -> None:
        free, end = self._free, start + 60.0
        heapify(free)
        while len(free) > self.prefill.serving:
            heappop(free)
        while len(free) < self.prefill.serving:
            heappush(free, start)
        left = sum(max(0.0, at - start) for at in free)
        transfer = self.day.served.transfer_seconds
        arrived, service, at = self._arrived, self._service, self._next
        added = 0.0
        ready, taken = self._ready, self._taken
        while at < len(arrived) and arrived[at] < end:
            seconds = service[at]
            begin = free[0] if free[0] > arrived[at] else arrived[at]
            heapreplace(free, begin + seconds)
            # Nearly sorted, so insertion moves hardly any.
            insort(ready, (begin + seconds + transfer, at), taken)
            added += seconds
            at += 1
        self._next = at
        after = sum(max(0.0, each - end) for each in free)
        self.prefill_busy = min(1.0, (left + added - after) / (60.0 * len(free)))

    def _decode_second(self, start: float) -> None:
        ready, active, engines = self._ready, self._active, self.decode.serving
        room_kv, room = self._room_kv * engines, self._room_requests * engines
        tokens, step, end = self._tokens, self._step, start + 1.0
        taken = self._taken
        while taken < len(ready) and ready[taken][0] < end:
            number = ready[taken][1]
            if self._kv + self._context[number] > room_kv or len(active) >= room:
                break
            at = max(ready[taken][0], start)
            taken += 1
            heappush(active, (tokens + (at - start) / step + self._output[number], number))
            self._kv += self._context[number]
            self._joined[number] = at
            self._ttft[number] = at + step - self._arrived[number]
        self._taken = taken
        if not active:
            return
        each = min(round(len(active) / engines), len(self._base) - 1) or 1
        step = self._step = self._base[each] + self._slope[each] * self._kv / engines
        done = tokens + 1.0 / step
        while active and active[0][0] <= done:
            finish, number = heappop(active)
            self._kv -= self._context[number]
            ended = start + (finish - tokens) * step
            self._itl[number] = (ended - self._joined[number]) / self._output[number]
        self._tokens = done


def _service_seconds(costs: PricedCosts, prompts: Floats) -> Floats:
    """Return the time of the steps of prompts that are computed alone."""
    most = costs.shape.max_num_batched_tokens
    lengths = np.geomspace(1, max(2.0, prompts.max(initial=2.0)), _LENGTHS)
    seconds = []
    for length in lengths:
        total = done = 0.0
        while done < length:
            chunk = min(most, length - done)
            total += costs.step_seconds(chunk, done + chunk / 2, 0, 0)
            done += chunk
        seconds.append(total)
    found: Floats = np.interp(prompts, lengths, seconds)
    return found


def _step_lines(costs: PricedCosts, day: Day) -> tuple[list[float], list[float]]:
    """Return, by batch, the seconds of a decode step without KV and per KV token of the engine."""
    mean = float(np.mean(day.arrivals.prompt_tokens)) if len(day.arrivals.seconds) else 1000.0
    base, slope = [1.0], [0.0]
    for batch in range(1, costs.shape.max_num_seqs + 1):
        low, high = (costs.step_seconds(0, 0, batch, batch * mean * of) for of in (0.5, 2.0))
        slope.append((high - low) / (1.5 * batch * mean))
        base.append(low - slope[-1] * 0.5 * batch * mean)
    return base, slope
