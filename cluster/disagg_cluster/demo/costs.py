"""What a step of a stand-in engine costs, and how much a stand-in engine can hold."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.engine.batch import Limits
from disagg_cluster.simulator.engine.roofline import Price, StepWork


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

    def price(self, work: StepWork) -> Price:
        """How long a step with this work lasts."""
        return Price(
            self.step_base_seconds
            + self.prefill_token_seconds * work.context_tokens
            + self.decode_request_seconds * work.writers
            + self.kv_thousand_tokens_seconds * work.writers_kv_tokens / 1000
        )

    def transfer_seconds(self, prompt_tokens: int) -> float:
        """How long the KV of a prompt travels to this engine."""
        return self.transfer_thousand_tokens_seconds * prompt_tokens / 1000


LIMITS = Limits(kv_blocks=25_000, block_tokens=16, running_requests=256, step_tokens=2048)
"""What a stand-in engine can hold."""
