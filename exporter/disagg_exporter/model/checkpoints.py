"""The accounting state that outlives a daemon: rows of plain numbers and words.

Durations and amounts are the exact integers of the accounting, so that a successor continues to the
nanosecond. `LedgerCheckpoint` is the whole; the others are its parts.
"""

from __future__ import annotations

from typing import NamedTuple

from disagg_exporter.model.accounts import ActivityCell, Cell, ExpectedSteps, TokenAccount
from disagg_exporter.model.devices import Device
from disagg_exporter.model.enums import Method, Phase, Reason, Role, Throttle
from disagg_exporter.model.steps import Assignment, StepTotals


class PieceCheckpoint(NamedTuple):
    """A stretch of a timeline that is final: work by its shares, or a reason."""

    start_ns: int
    end_ns: int
    prefill_share: float
    dummy_share: float
    reason: Reason


class PendingWork(NamedTuple):
    """The total step time of all records that have no place in time yet.

    `began_ns` is where its first span begins if part of that has been placed; 0 if none has.
    """

    length_ns: int
    prefill_share: float
    dummy_share: float
    prefill_tokens: int
    decode_tokens: int
    lost_records: int
    began_ns: int = 0


class StreamCheckpoint(NamedTuple):
    """Position in a received stream: its last message's sequence number and running totals."""

    pid: int
    incarnation: int
    sequence: int
    totals: StepTotals


class TimelineCheckpoint(NamedTuple):
    """One rank of an engine: what its devices have yet to read, and how far it was received.

    `pieces` end at `mark_ns`. `last_record_ns`, `work_left` and `gap` describe the last record:
    when it was made, whether work was left, and why the engine idles after it; `earlier_gap` is why
    it idles before its pending work. `held_totals`: the totals of its streams include held time.
    """

    engine_index: int
    born_ns: int
    mark_ns: int
    pieces: tuple[PieceCheckpoint, ...] = ()
    streams: tuple[StreamCheckpoint, ...] = ()
    pending: PendingWork | None = None
    last_record_ns: int = 0
    work_left: bool = False
    gap: Reason = Reason.NO_REQUEST
    earlier_gap: Reason = Reason.NO_REQUEST
    overlapped: bool = False
    held_totals: bool = False


class AssignmentCheckpoint(NamedTuple):
    """An assignment and the time from which it is in force."""

    since_ns: int
    assignment: Assignment


class EngineCheckpoint(NamedTuple):
    """What one engine has used; `live` are its open timelines, `ended` the closed ones.

    `cut_ns` is the time cut on devices that have been removed. `loss_ns` and `gain_ns` are the cost
    and saving of mixing prefill and decode, within the `known_ns` of step time for which they were
    known; `expected` is the expected duration of its steps, where that was known.
    """

    assignment: Assignment
    history: tuple[AssignmentCheckpoint, ...]
    method: Method
    live: tuple[TimelineCheckpoint, ...] = ()
    ended: tuple[TimelineCheckpoint, ...] = ()
    reported: StepTotals = StepTotals()
    gpu_slice_ns: tuple[tuple[Role, Phase, int], ...] = ()
    tokens: tuple[tuple[Role, Phase, int], ...] = ()
    lost_records: int = 0
    late_records: int = 0
    cut_ns: int = 0
    loss_ns: int = 0
    gain_ns: int = 0
    known_ns: int = 0
    expected: ExpectedSteps = ExpectedSteps()


class PowerCheckpoint(NamedTuple):
    """What a device's energy readings taught about the power of its uses, at its counter's lag.

    `gram` and `moments` are the sums of a least-squares fit, `errors` the squared errors of the
    predictions by power and by time, over `predicted` windows.
    """

    lag_ns: int
    predicted: int
    gram: tuple[float, ...]
    moments: tuple[float, ...]
    errors: tuple[float, float]


class EnergyCheckpoint(NamedTuple):
    """A device's committed energy, and the reading up to which it is counted.

    `lengths_ns` is the committed time in which it was used, `limit_watts` the device's power limit.
    """

    microjoules: tuple[tuple[Cell, int], ...]
    baseline_watts: float | None = None
    read_ns: int | None = None
    read_microjoules: int = 0
    lengths_ns: tuple[tuple[Cell, int], ...] = ()
    power: PowerCheckpoint | None = None
    limit_watts: float | None = None


class CarryOverCheckpoint(NamedTuple):
    """Step time of an engine that has yet to be placed on a device."""

    engine: str
    role: Role
    prefill_ns: int
    decode_ns: int


class DeviceCheckpoint(NamedTuple):
    """One device: its committed cells, its users, and what is not explained yet.

    `engines` are its users at the watermark, `changes` the later changes. `absences` are the
    stretches (start, end) above the watermark in which no daemon ran. `unclaimed` are stretches
    (start, end, active nanoseconds) that were committed with activity of no known engine.
    """

    device: Device
    start_ns: int
    watermark_ns: int
    cells: tuple[tuple[Cell, int], ...] = ()
    engines: tuple[Assignment, ...] = ()
    changes: tuple[Assignment, ...] = ()
    absences: tuple[tuple[int, int], ...] = ()
    last_death_ns: int = 0
    busy_until_ns: int = 0
    sampled_ns: int | None = None
    carry_overs: tuple[CarryOverCheckpoint, ...] = ()
    cut_ns: tuple[tuple[str, int], ...] = ()
    activity_ns: tuple[tuple[ActivityCell, int], ...] = ()
    throttled_ns: tuple[tuple[Throttle, int], ...] = ()
    energy: EnergyCheckpoint | None = None
    unclaimed: tuple[tuple[int, int, int], ...] = ()
    activity_lengths_ns: tuple[tuple[ActivityCell, int], ...] = ()


class RemovedCheckpoint(NamedTuple):
    """Sums over removed devices of one name, with the fields of their accounts."""

    gpu_name: str
    slice_ns: tuple[tuple[Cell, int], ...]
    active_slice_ns: tuple[tuple[ActivityCell, int], ...]
    microjoules: tuple[tuple[Cell, int], ...] | None
    metered_slice_ns: tuple[tuple[Cell, int], ...] = ()
    read_slice_ns: tuple[tuple[ActivityCell, int], ...] = ()


class LedgerCheckpoint(NamedTuple):
    """The accounting of a node as it was at `taken_ns`."""

    taken_ns: int
    devices: tuple[DeviceCheckpoint, ...] = ()
    engines: tuple[EngineCheckpoint, ...] = ()
    tokens: tuple[TokenAccount, ...] = ()
    removed: tuple[RemovedCheckpoint, ...] = ()
