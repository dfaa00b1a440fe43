"""What a step of a stand-in engine costs, and how much a stand-in engine can hold."""

from __future__ import annotations

from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """The constant prices of a stand-in engine, in seconds; a step's length is their plain sum.

    The defaults have the shape of an 8B model on a large GPU (reading a prompt is priced by the
    token, writing is priced mostly by the step), not its exact figures. They hold for the engine
    as a whole, whatever the number of its GPUs.
    """

    step_base_seconds: float = 0.012
    """Every step: launch, weights read once, sampling."""
    prefill_token_seconds: float = 50e-6
    """Each prompt token computed in the step."""
    decode_request_seconds: float = 250e-6
    """Each request that gets one more token in the step."""
    kv_thousand_tokens_seconds: float = 50e-6
    """Each 1000 tokens of KV cache that those requests read."""
    transfer_thousand_tokens_seconds: float = 0.004
    """Each 1000 prompt tokens whose KV comes from another engine; the GPU is idle meanwhile."""

    def step_ns(self, *, prefill_tokens: int, decode_requests: int, kv_tokens: int) -> int:
        """How long a step with this work lasts, in nanoseconds."""
        seconds = (
            self.step_base_seconds
            + self.prefill_token_seconds * prefill_tokens
            + self.decode_request_seconds * decode_requests
            + self.kv_thousand_tokens_seconds * kv_tokens / 1000
        )
        return round(seconds * _NS)

    def transfer_ns(self, prompt_tokens: int) -> int:
        """How long the KV of a prompt travels to this engine, in nanoseconds."""
        return round(self.transfer_thousand_tokens_seconds * prompt_tokens / 1000 * _NS)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a stand-in engine can hold: the three knobs of vLLM's scheduler that matter here."""

    running_requests: int = 256
    """Requests in the batch at once (`--max-num-seqs`)."""
    step_tokens: int = 2048
    """Tokens of one step, decode first; longer prompts are cut into chunks."""
    kv_tokens: int = 400_000
    """Room of the KV cache. A request takes its whole prompt and output on admission, so nothing
    is ever preempted."""
