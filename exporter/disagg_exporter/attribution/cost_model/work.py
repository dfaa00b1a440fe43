"""What a step had to do, as far as its cost depends on it; and that, from an engine's records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.steps.rows import NOT_TOLD, Rows, unfinished_tokens


class StepWork(NamedTuple):
    """The features of a step's cost.

    `prefill_attended` is Σ over prefill tokens of the tokens each attends to. `decode_kv` is the
    cache that decode reads, in any one unit (tokens, or a share of the cache).
    """

    prefill_tokens: float = 0.0
    prefill_attended: float = 0.0
    decode_requests: float = 0.0
    decode_kv: float = 0.0


class Proxies:
    """Reads a vLLM engine's records, in order, and guesses what they do not say.

    A record has counts of requests and tokens, and the share of the cache in use. Not in it:

    * how long a chunk's context is: the tokens computed so far of prompts that have not ended,
      tracked from record to record, plus the cached tokens of those that end in this step. Two
      chunks in one step are taken to be equally long; a cached prefix is known only at the end.
      A step that only decodes ends all tracking: no prompt is under way then. So prompts that
      were aborted or preempted, which never end, are not carried on for ever.
    * how much cache decode reads: the share of the cache in use when the step began (prompts that
      are still being computed included). The size of the cache is not known and not needed, a
      coefficient takes it up. Engines that tell the tokens read (FPM) are taken at their word.

    docs/benchmarks.md says what that costs in error.
    """

    __slots__ = ("_kv_usage_ratio", "_unfinished_tokens")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget where prompts stand: records are missing, or the engine is another process."""
        self._unfinished_tokens = 0.0
        self._kv_usage_ratio: float | None = None

    def read(self, rows: Rows, kinds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the steps of the next records had to do, a `StepWork` in each line.

        `kinds` are those of `wire.step_kind`.
        """
        decodes, tokens = kinds == wire.GENERATION, rows["context_tokens"]
        before = self._follow(rows, decodes)
        usage = rows["kv_usage_ratio"]
        known = usage[:1] if self._kv_usage_ratio is None else [self._kv_usage_ratio]
        told = rows["decode_kv_tokens"]
        read = np.where(told == NOT_TOLD, np.concatenate((known, usage[:-1])), told)
        self._kv_usage_ratio = float(usage[-1])
        chunk = tokens / np.maximum(rows["context_requests"], 1)
        attended = chunk * (before + rows["cached_tokens"]) + tokens * (chunk + 1) / 2
        # Transferred requests write their first token like any other (accounting A4).
        decoding = rows["generation_requests"] + decodes * rows["context_requests"]
        columns = tokens * ~decodes, attended * ~decodes, decoding, read * (decoding > 0)
        return np.stack(columns, axis=1)

    def pass_over(self, rows: Rows, kinds: NDArray[np.int64]) -> None:
        """Take note of the next records, whose work nobody asks for."""
        self._kv_usage_ratio = float(rows["kv_usage_ratio"][-1])
        if kinds[-1] == wire.GENERATION:
            self._unfinished_tokens = 0.0  # whatever was before it
        else:
            self._follow(rows, kinds == wire.GENERATION)

    def _follow(self, rows: Rows, decodes: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the unfinished prompts' tokens before each record."""
        grown, known = rows["context_tokens"] - rows["computed_tokens"], self._unfinished_tokens
        left = unfinished_tokens(grown, decodes, known)
        self._unfinished_tokens = float(left[-1])
        return np.concatenate(([known], left[:-1]))
