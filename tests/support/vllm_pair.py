"""The truth to check a real vLLM pair against: its workers' own timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRUTH_PLUGIN = Path(__file__).parent / "truth_plugin"
TRUTH_FILE_ENVIRONMENT = "DISAGG_TRUTH_FILE"


@dataclass(frozen=True, slots=True)
class TruthStep:
    """One engine step as measured by the worker; CLOCK_MONOTONIC nanoseconds.

    `waited_ns` is the part of it that the worker spent waiting for its engine core to ask for
    the sampling.
    """

    start_ns: int
    end_ns: int
    waited_ns: int
    scheduled_tokens: int
    context_tokens: int
    generation_tokens: int

    @property
    def held_ns(self) -> int:
        """The time for which the step held the device."""
        return self.end_ns - self.start_ns


def truth_environment(path: Path) -> dict[str, str]:
    """Return the variables that make an engine write its truth to `path`.

    PYTHONPATH holds the plugin alone: when adding another folder, keep it.
    """
    return {TRUTH_FILE_ENVIRONMENT: str(path), "PYTHONPATH": str(TRUTH_PLUGIN)}


def read_truth(path: Path) -> list[TruthStep]:
    """Read the steps stamped so far, in order; none if the file does not exist yet.

    A last line without its end is still being written and is left out; any other line that is
    not six numbers raises `ValueError`.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    steps = []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        fields = line.split()
        if len(fields) != 6:
            raise ValueError(f"{path}:{number}: expected six numbers: {line!r}")
        steps.append(TruthStep(*map(int, fields)))
    return steps
