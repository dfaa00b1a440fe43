"""Reports of an engine's work, by step or by stretch of time, and its assigned devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.model.enums import EngineState, Method, Role, Split


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which devices serve which engine in which role, and since when.

    Passed to the accounting at spawn and at every change of state. `devices` are UUIDs. `pids` are
    the processes whose step records are accepted. `since_ns` is when the change happened. `ranks`:
    its data-parallel ranks have equal parts of the devices, in order; 1 if that is not known, and
    each rank then holds them all.
    """

    engine: str
    role: Role
    devices: tuple[str, ...]
    state: EngineState
    since_ns: int
    pids: tuple[int, ...] = ()
    model_name: str = ""
    engine_namespace: str = ""
    ranks: int = 1

    def of_rank(self, rank: int) -> tuple[str, ...]:
        """Return the devices of one rank."""
        each, over = divmod(len(self.devices), self.ranks)
        if over or rank >= self.ranks:
            return self.devices
        return self.devices[rank * each : (rank + 1) * each]


class StepTotals(NamedTuple):
    """Running totals of one stream of steps since its incarnation began.

    `steps` and `elapsed_ns` are ordered by kind: context, generation, mixed, dummy.
    """

    steps: tuple[int, int, int, int] = (0, 0, 0, 0)
    elapsed_ns: tuple[int, int, int, int] = (0, 0, 0, 0)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    drops: int = 0

    @property
    def mixed_steps(self) -> int:
        """Number of steps that did both phases at once."""
        return self.steps[2]


class Step(NamedTuple):
    """One engine step, as reported by its engine after the step.

    A tuple like its totals, because thousands are made per second. `t_ns` is when the record was
    made (after the end of the step), `elapsed_ns` how long the engine core waited for the model, by
    its own account. `context_*` and `generation_*` are what was scheduled; `computed_tokens`,
    `cached_tokens` and `external_tokens` say where the KV of the prompts that *ended* in this step
    came from (this engine, a cache here, another engine). `running`, `waiting` and `deferred`
    describe the requests left after the step, `kv_usage_ratio` the cache in use. `decode_kv_tokens`
    is the cache that its decode read. These two are None where the engine does not report them.
    """

    t_ns: int
    elapsed_ns: int
    sequence: int
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    encoder_inputs: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float | None = 0.0
    preemptions: int = 0
    dummy: bool = False
    totals: StepTotals = StepTotals()
    decode_kv_tokens: int | None = None


class StreamKey(NamedTuple):
    """Source of step records: totals and sequence numbers belong to exactly one.

    A tuple, because every step of every engine is looked up by it several times.
    """

    engine: str
    pid: int
    incarnation: int
    engine_index: int


@dataclass(frozen=True, slots=True)
class WorkWindow:
    """What one engine did in (start_ns, end_ns], inferred from its metrics page or its role.

    `busy_ns` is how long it held each of its devices; None means: as long as those devices were
    active. Of that, `prefill_share` was prefill and the rest decode. The tokens are those computed
    in the stretch. `running`, `waiting` and `deferred` are its requests at the end of it; None
    where unknown. `split`, `residual_ratio` and `fitted` say how the share was determined, how far
    the model is from observation, and from how many stretches it has learned. `cut_prompts`:
    prompts were computed in chunks, which sums show badly.
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
    cut_prompts: bool = False

    @property
    def pending(self) -> bool:
        """Whether the engine had work left at the end."""
        return bool(self.running or self.waiting)
