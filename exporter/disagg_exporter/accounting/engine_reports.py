"""Sums of what engines report: steps and step time of all processes, and tokens by role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_exporter.accounting.timelines.records import Tokens
from disagg_exporter.model import Assignment, Phase, Role, StepTotals, StreamKey, TokenAccount
from disagg_exporter.model.checkpoints import AssignmentCheckpoint
from disagg_exporter.steps.rows import Rows, totals_of

MOST_STREAMS = 1024
"""Streams remembered per engine until it ends: its plugin begins one per process."""


@dataclass(slots=True)
class _Stream:
    """The totals of one stream: those already summed, and the latest."""

    summed: StepTotals
    latest: StepTotals


class ReportedTotals:
    """Sums the running totals of an engine's streams since each one's first message.

    Nothing is placed in time here, so the sums can be compared with the accounted time.
    """

    def __init__(self) -> None:
        self._streams: dict[StreamKey, _Stream] = {}
        self._steps = [0, 0, 0, 0]
        self._elapsed_ns = [0, 0, 0, 0]

    def has_room(self, key: StreamKey) -> bool:
        """Return whether a stream is known, or there is room for it."""
        return key in self._streams or len(self._streams) < MOST_STREAMS

    def add(self, key: StreamKey, totals: StepTotals) -> None:
        """Add the totals of one message; one older than the last is ignored."""
        stream = self._streams.get(key)
        if stream is None:
            self._streams[key] = _Stream(totals, totals)
        elif totals.steps > stream.latest.steps:
            # No total ever falls, so the first that differs decides which message is later.
            stream.latest = totals

    def add_rows(self, key: StreamKey, rows: Rows) -> None:
        """Add the totals of consecutive records."""
        if key not in self._streams:
            self.add(key, totals_of(rows[0]))
        self.add(key, totals_of(rows[-1]))

    def resume(self, reported: StepTotals, streams: Mapping[StreamKey, StepTotals]) -> None:
        """Continue with the sums of a checkpoint; `streams` are summed up to these totals."""
        self._steps, self._elapsed_ns = list(reported.steps), list(reported.elapsed_ns)
        self._streams = {key: _Stream(totals, totals) for key, totals in streams.items()}

    def end(self) -> None:
        """Forget the streams of a process that has died; their sums stay."""
        self._sum_up()
        self._streams.clear()

    @property
    def totals(self) -> StepTotals:
        """Return the steps and the elapsed nanoseconds by kind."""
        self._sum_up()
        steps, elapsed = self._steps, self._elapsed_ns
        return StepTotals(
            (steps[0], steps[1], steps[2], steps[3]),
            (elapsed[0], elapsed[1], elapsed[2], elapsed[3]),
        )

    def _sum_up(self) -> None:
        for stream in self._streams.values():
            before, after = stream.summed, stream.latest
            for kind in range(4):
                # A total that falls adds nothing.
                self._steps[kind] += max(after.steps[kind] - before.steps[kind], 0)
                self._elapsed_ns[kind] += max(after.elapsed_ns[kind] - before.elapsed_ns[kind], 0)
            stream.summed = after


MOST_KEPT = 64


class AssignmentHistory:
    """Roles and models of an engine with their start, as far back as its tokens may date.

    If an engine reports nothing, that is unknown, and its last changes are kept.
    """

    def __init__(self, first: Assignment) -> None:
        self._changes = [AssignmentCheckpoint(first.since_ns, first)]

    def checkpoint(self) -> tuple[AssignmentCheckpoint, ...]:
        """Return the history, as far back as it is kept."""
        return tuple(self._changes)

    @classmethod
    def resumed(cls, before: Sequence[AssignmentCheckpoint]) -> AssignmentHistory:
        """Return the history of a checkpoint with at least one change."""
        history = cls(before[0].assignment)
        history._changes = list(before)
        return history

    def add(self, assignment: Assignment) -> None:
        """Add a change from its `since_ns` on; changes arrive in order of time."""
        since_ns, last = self._changes[-1]
        if _owner(assignment) != _owner(last):
            self._changes.append(
                AssignmentCheckpoint(max(assignment.since_ns, since_ns), assignment)
            )
            del self._changes[:-MOST_KEPT]

    def shares(self, tokens: Tokens) -> Iterator[tuple[Assignment, int, int]]:
        """Yield each assignment, and the (prefill, decode) tokens computed under it."""
        if len(self._changes) == 1 and len(tokens.t_ns):
            yield self._changes[0].assignment, int(tokens.prefill.sum()), int(tokens.decode.sum())
            return
        starts_ns = [since_ns for since_ns, _ in self._changes[1:]]
        number = np.searchsorted(starts_ns, tokens.t_ns, side="right")
        for place, (_, assignment) in enumerate(self._changes):
            own = number == place
            if own.any():
                yield assignment, int(tokens.prefill[own].sum()), int(tokens.decode[own].sum())

    def forget_before(self, t_ns: int) -> None:
        """Drop assignments that ended before an instant."""
        while len(self._changes) > 1 and self._changes[1].since_ns <= t_ns:
            del self._changes[0]


class NodeTokens:
    """The tokens of a node by role, phase and model, including those of engines long gone.

    The time of the engines that report them is kept beside them: the time per token is a quotient
    of both, and an engine that reports no tokens must not be in its numerator.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[Role, Phase, str, str]] = Counter()
        self._slice_ns: Counter[tuple[Role, Phase, str, str]] = Counter()

    def count(self, assignment: Assignment, phase: Phase, tokens: int) -> None:
        """Add tokens of one phase, computed under an assignment."""
        role, model_name, engine_namespace = _owner(assignment)
        self._counts[role, phase, model_name, engine_namespace] += tokens

    def count_time(self, role: Role, phase: Phase, owner: tuple[str, str], slice_ns: int) -> None:
        """Add device time of an engine that reports tokens, of this (model name, namespace)."""
        self._slice_ns[role, phase, *owner] += slice_ns

    def forget_model(self, model_name: str) -> None:
        """Drop the tokens of a model: no sum over all models includes them."""
        for sums in (self._counts, self._slice_ns):
            for key in [key for key in sums if key[2] == model_name]:
                del sums[key]

    def resume(self, before: Iterable[TokenAccount]) -> None:
        """Continue with the tokens of a checkpoint."""
        for each in before:
            self._counts[each[:4]] += each.tokens
            self._slice_ns[each[:4]] += each.slice_ns

    def accounts(self) -> tuple[TokenAccount, ...]:
        """Return the tokens as exported and checkpointed, and time that has none yet."""
        # In order of their first count.
        keys = dict.fromkeys((*self._counts, *self._slice_ns))
        return tuple(TokenAccount(*key, self._counts[key], self._slice_ns[key]) for key in keys)


def _owner(assignment: Assignment) -> tuple[Role, str, str]:
    return assignment.role, assignment.model_name, assignment.engine_namespace
