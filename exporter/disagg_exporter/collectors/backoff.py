"""How long to wait before what has failed is tried again; pure."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from the first to the longest, in seconds."""

    first_seconds: float
    longest_seconds: float = 10.0

    def seconds(self, failures: int) -> float:
        """Return the wait after so many failures in a row; after none, the first."""
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        longest = max(self.first_seconds, self.longest_seconds)
        return min(self.first_seconds * 2.0**doublings, longest)
