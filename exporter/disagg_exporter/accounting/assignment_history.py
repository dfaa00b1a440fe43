"""Whose an engine's tokens are: an engine that changes its role keeps what it did before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from disagg_exporter.accounting.timelines.entry import Tokens
from disagg_exporter.model import Assignment
from disagg_exporter.model.checkpoints import AssignmentCheckpoint

MOST_KEPT = 64


class AssignmentHistory:
    """What an engine was, and since when, as far back as its tokens may still come from.

    Of one that tells nothing nobody knows how far that is; its last changes are kept.
    """

    def __init__(self, first: Assignment) -> None:
        self._since_ns: list[int] = [first.since_ns]
        self._owners: list[Assignment] = [first]

    def checkpoint(self) -> tuple[AssignmentCheckpoint, ...]:
        """Return what it was, and since when, as far back as is kept."""
        return tuple(map(AssignmentCheckpoint, self._since_ns, self._owners))

    @classmethod
    def resumed(cls, before: Sequence[AssignmentCheckpoint]) -> AssignmentHistory:
        """Return the owners of before; there is one at least."""
        owners = cls(before[0].assignment)
        owners._since_ns = [each.since_ns for each in before]
        owners._owners = [each.assignment for each in before]
        return owners

    def change(self, assignment: Assignment) -> None:
        """Take what it is from `since_ns` on; changes are told in the order of time."""
        if _owner(assignment) != _owner(self._owners[-1]):
            self._since_ns.append(max(assignment.since_ns, self._since_ns[-1]))
            self._owners.append(assignment)
            del self._since_ns[:-MOST_KEPT], self._owners[:-MOST_KEPT]

    def shares(self, tokens: Tokens) -> Iterator[tuple[Assignment, int, int]]:
        """Yield what it was when it told of tokens, and how many of prefill and of decode."""
        number = np.searchsorted(self._since_ns[1:], tokens.t_ns, side="right")
        for place, owner in enumerate(self._owners):
            ours = number == place
            if ours.any():
                yield owner, int(tokens.prefill[ours].sum()), int(tokens.decode[ours].sum())

    def forget_before(self, t_ns: int) -> None:
        """Forget what it was before an instant: nothing older will be asked for."""
        while len(self._owners) > 1 and self._since_ns[1] <= t_ns:
            del self._since_ns[0], self._owners[0]


def _owner(assignment: Assignment) -> tuple[str, str, str]:
    return assignment.role, assignment.model_name, assignment.engine_namespace
