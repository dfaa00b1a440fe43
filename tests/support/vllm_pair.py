"""What a real vLLM pair is checked against: the stamps that its workers took themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRUTH_PLUGIN = Path(__file__).parent / "truth_plugin"
TRUTH_FILE_ENVIRONMENT = "DISAGG_TRUTH_FILE"


@dataclass(frozen=True, slots=True)
class TruthStep:
    """One engine step as the worker saw it; CLOCK_MONOTONIC nanoseconds.

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
        """How long the step held the device."""
        return self.end_ns - self.start_ns


def truth_environment(path: Path) -> dict[str, str]:
    """Return what an engine's environment needs to write its truth to `path`.

    PYTHONPATH holds the plugin alone: whoever adds a folder of theirs must keep it.
    """
    return {TRUTH_FILE_ENVIRONMENT: str(path), "PYTHONPATH": str(TRUTH_PLUGIN)}


def read_truth(path: Path) -> list[TruthStep]:
    """Read the steps stamped so far, in their order; none when the file is not there yet.

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
