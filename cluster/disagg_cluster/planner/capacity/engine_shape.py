"""GPUs and limits of one engine."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.capacity.problems import not_in_range, refuse


@dataclass(frozen=True, slots=True)
class EngineShape:
    """An engine's GPUs and limits.

    `gpus` is their number (tensor- times pipeline-parallel). `kv_tokens` is the size of the KV
    cache in tokens and `kv_bytes_per_token` the size of one of them; None if not known.

    Raises:
        ValueError: A number is not above 0; the message names each of them.
    """

    gpu_name: str
    gpus: int
    kv_tokens: float | None
    kv_bytes_per_token: float | None
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256

    def __post_init__(self) -> None:
        known = {
            "gpus": self.gpus,
            "kv_tokens": self.kv_tokens,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
        }
        refuse(
            not_in_range(
                {name: value for name, value in known.items() if value is not None}, above=True
            )
        )
