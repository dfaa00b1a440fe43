"""What an engine that tells no single steps did over a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.model.words import Method, Split


@dataclass(frozen=True, slots=True)
class WorkWindow:
    """What one engine did in (start_ns, end_ns], as its metrics page or its role suggests.

    `busy_ns` is how long it held each of its devices; None means: as long as those devices were
    active. Of that, `prefill_share` was prefill and the rest decode. The tokens are those computed
    in the stretch. `running`, `waiting` and `deferred` are its requests at the end of it; None
    where nobody tells. `split`, `residual_ratio` and `fitted` say how the share was found, how far
    its model is from what was seen, and from how many stretches it has learned.
    """

    start_ns: int
    end_ns: int
    method: Method
    prefill_share: float
    busy_ns: int | None = None
    prefill_tokens: int = 0
    decode_tokens: int = 0
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    kv_usage_ratio: float | None = None
    split: Split = Split.NONE
    residual_ratio: float | None = None
    fitted: int = 0

    @property
    def pending(self) -> bool:
        """Whether the engine had something left to do at the end."""
        return bool(self.running or self.waiting)
