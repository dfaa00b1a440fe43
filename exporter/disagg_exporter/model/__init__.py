"""The nouns of the exporter: what a device, an engine, a step and a snapshot are.

Everything here is frozen and does nothing. Two clocks appear and are never mixed: `*_ns` is
CLOCK_MONOTONIC in integer nanoseconds (shared by all processes of a host, so engine and daemon
agree), `*_timestamp_seconds` is Unix time. Accounting is done in integer nanoseconds because
integers conserve time exactly; seconds appear only where something is shown.
"""

from disagg_exporter.model.accounts import (
    FORGOTTEN_MODEL,
    GPU_SECOND_SLICE_NS,
    JOULE_MICROJOULES,
    ActivityCell,
    BusyGpus,
    Cell,
    DeviceAccount,
    EngineAccount,
    TokenAccount,
)
from disagg_exporter.model.capacity import (
    Bound,
    CapacitySource,
    DecodeLimit,
    EngineCapacity,
    ModelSize,
    PrefillLimit,
    Sides,
)
from disagg_exporter.model.devices import (
    GPU_SLICES,
    Device,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    GpuShare,
)
from disagg_exporter.model.serving import (
    Histogram,
    ServingCounts,
    Total,
)
from disagg_exporter.model.snapshot import (
    GpuPrice,
    Snapshot,
)
from disagg_exporter.model.statuses import (
    CollectorStatus,
    DaemonCounts,
    DynamoWorker,
    EnginePage,
    EngineStatus,
    RouterCounts,
    RouterEngine,
    RouterPage,
    RouterStatus,
    TlsStatus,
    WorkerStatus,
)
from disagg_exporter.model.steps import (
    Assignment,
    Step,
    StepTotals,
    StreamKey,
)
from disagg_exporter.model.windows import (
    WorkWindow,
)
from disagg_exporter.model.words import (
    EngineState,
    Method,
    Phase,
    Reason,
    Role,
    Split,
    Throttle,
    Unit,
    Use,
)

__all__ = [
    "FORGOTTEN_MODEL",
    "GPU_SECOND_SLICE_NS",
    "GPU_SLICES",
    "JOULE_MICROJOULES",
    "ActivityCell",
    "Assignment",
    "Bound",
    "BusyGpus",
    "CapacitySource",
    "Cell",
    "CollectorStatus",
    "DaemonCounts",
    "DecodeLimit",
    "Device",
    "DeviceAccount",
    "DeviceFailure",
    "DeviceReading",
    "DeviceSweep",
    "DynamoWorker",
    "EngineAccount",
    "EngineCapacity",
    "EnginePage",
    "EngineState",
    "EngineStatus",
    "GpuPrice",
    "GpuShare",
    "Histogram",
    "Method",
    "ModelSize",
    "Phase",
    "PrefillLimit",
    "Reason",
    "Role",
    "RouterCounts",
    "RouterEngine",
    "RouterPage",
    "RouterStatus",
    "ServingCounts",
    "Sides",
    "Snapshot",
    "Split",
    "Step",
    "StepTotals",
    "StreamKey",
    "Throttle",
    "TlsStatus",
    "TokenAccount",
    "Total",
    "Unit",
    "Use",
    "WorkWindow",
    "WorkerStatus",
]
