"""What a step had to do, as far as its cost depends on it; and that, from an engine's records."""

from __future__ import annotations

from typing import NamedTuple

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step


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
        self._unfinished_tokens = 0
        self._kv_usage_ratio: float | None = None

    def read(self, step: Step, kind: int) -> StepWork:
        """Return what the next record's step had to do; `kind` as of `wire.step_kind`."""
        kv_usage_ratio = self._kv_usage_ratio
        self._kv_usage_ratio = step.kv_usage_ratio
        if kv_usage_ratio is None:
            kv_usage_ratio = step.kv_usage_ratio
        decoding = step.generation_requests
        tokens = attended = 0.0
        if kind == wire.GENERATION:
            # Transferred requests write their first token like any other (accounting A4).
            decoding += step.context_requests
            self._unfinished_tokens = 0
        else:
            tokens = float(step.context_tokens)
            attended = self._attended(step)
        read = kv_usage_ratio if step.decode_kv_tokens is None else float(step.decode_kv_tokens)
        return StepWork(tokens, attended, decoding, read if decoding else 0.0)

    def pass_over(self, step: Step, kind: int) -> None:
        """Take note of the next record, whose work nobody asks for."""
        self._kv_usage_ratio = step.kv_usage_ratio
        if kind == wire.GENERATION:
            self._unfinished_tokens = 0
        else:
            left = self._unfinished_tokens + step.context_tokens - step.computed_tokens
            self._unfinished_tokens = max(left, 0)

    def _attended(self, step: Step) -> float:
        before = self._unfinished_tokens
        self._unfinished_tokens = max(before + step.context_tokens - step.computed_tokens, 0)
        chunk = step.context_tokens / max(step.context_requests, 1)
        return chunk * (before + step.cached_tokens) + step.context_tokens * (chunk + 1) / 2
