"""An engine whose every step a test dictates: its records, with their running totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from disagg_exporter.model import SECOND_NS, Step, StepTotals, StreamKey
from disagg_exporter.steps.rows import kind_of

Hear = Callable[[StreamKey, Step, bool], None]
"""Receives a message: its stream, its content, whether it is a step's record."""


@dataclass(slots=True)
class ScriptedEngine:
    """Takes steps as a test demands and reports each when it ends.

    `gap_seconds` pass before each step.
    """

    hear: Hear
    name: str = "engine-0"
    pid: int = 100
    engine_index: int = 0
    now_ns: int = 1_000 * SECOND_NS
    gap_seconds: float = 0.0
    sequence: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float | None = 0.0
    totals: StepTotals = field(default_factory=StepTotals)

    def prefill(self, tokens: int, seconds: float, *, prompt_ends: bool = True) -> None:
        """Compute a number of tokens of a prompt."""
        computed = tokens if prompt_ends else 0
        self._step(
            Step(0, 0, 0, context_requests=1, context_tokens=tokens, computed_tokens=computed),
            seconds,
        )

    def decode(self, batch: int, seconds: float, **more: int) -> None:
        """Write one token of each request."""
        step = Step(0, 0, 0, generation_requests=batch, generation_tokens=batch)
        self._step(step._replace(**more), seconds)  # type: ignore[arg-type] # whole numbers

    def mixed(self, tokens: int, batch: int, seconds: float) -> None:
        """Compute a number of tokens of a prompt and write one token of each request."""
        step = Step(
            *(0, 0, 0),
            context_requests=1,
            context_tokens=tokens,
            computed_tokens=tokens,
            generation_requests=batch,
            generation_tokens=batch,
        )
        self._step(step, seconds)

    def rest(self, seconds: float, *, beats: int = 1) -> None:
        """Become idle: report so in a record, then send heartbeats."""
        self.running = self.waiting = 0
        self.sequence += 1
        self._tell(self._stamped(Step(0, 0, 0), 0), record=True)
        self.hang(seconds, beats=beats)

    def hang(self, seconds: float, *, beats: int = 1) -> None:
        """Send only heartbeats."""
        for _ in range(beats):
            self.now_ns += round(seconds / beats * SECOND_NS)
            self._tell(self._stamped(Step(0, 0, 0), 0), record=False)

    def restart(self) -> None:
        """Become another process."""
        self.pid += 1
        self.sequence = 0
        self.totals = StepTotals()

    def _step(self, step: Step, seconds: float) -> None:
        elapsed_ns = round(seconds * SECOND_NS)
        self.now_ns += round(self.gap_seconds * SECOND_NS) + elapsed_ns
        self.sequence += 1
        kind = kind_of(step)
        steps, elapsed = list(self.totals.steps), list(self.totals.elapsed_ns)
        steps[kind] += 1
        elapsed[kind] += elapsed_ns
        self.totals = StepTotals(tuple(steps), tuple(elapsed))  # type: ignore[arg-type] # of four
        self._tell(self._stamped(step, elapsed_ns), record=True)

    def _stamped(self, step: Step, elapsed_ns: int) -> Step:
        return step._replace(
            t_ns=self.now_ns,
            elapsed_ns=elapsed_ns,
            sequence=self.sequence,
            running=self.running,
            waiting=self.waiting,
            kv_usage_ratio=self.kv_usage_ratio,
            totals=self.totals,
        )

    def _tell(self, step: Step, *, record: bool) -> None:
        self.hear(StreamKey(self.name, self.pid, 1, self.engine_index), step, record)
