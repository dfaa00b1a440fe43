"""The nouns of the exporter: what a device, an engine, a step and a snapshot are.

Everything here is frozen and does nothing. Two clocks appear and are never mixed: `*_ns` is
CLOCK_MONOTONIC in integer nanoseconds (shared by all processes of a host, so engine and daemon
agree), `*_timestamp_seconds` is Unix time. Accounting is done in integer nanoseconds because
integers conserve time exactly; seconds appear only where something is shown.
"""

from disagg_exporter.model.accounts import (
    FORGOTTEN_MODEL,
    MICROJOULES_PER_JOULE,
    SLICE_NS_PER_GPU_SECOND,
    ActivityCell,
    BusyGpus,
    Cell,
    DeviceAccount,
    EngineAccount,
    ExpectedSteps,
    Interference,
    ReferenceStep,
    TokenAccount,
)
from disagg_exporter.model.devices import (
    GPU_SLICES,
    Device,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    ForeignWork,
    GpuShare,
    LinkTraffic,
)
from disagg_exporter.model.engines import (
    CurveSample,
    DecodeLimit,
    DynamoWorker,
    EngineCapacity,
    EnginePage,
    EngineStatus,
    ModelSize,
    PrefillLimit,
    StepLimits,
    TlsStatus,
)
from disagg_exporter.model.enums import (
    Bottleneck,
    CapacitySource,
    Direction,
    EngineState,
    KvQueue,
    LimitConfidence,
    LinkKind,
    Method,
    Phase,
    Reason,
    Role,
    ShareConfidence,
    Split,
    Throttle,
    Unit,
    Use,
)
from disagg_exporter.model.serving import (
    ENDINGS,
    PROMPT_TOKENS,
    REJECTIONS,
    FrontCounts,
    Histogram,
    Part,
    PartAccount,
    PromptTokenAccount,
    RequestAccount,
    RequestAccounts,
    RequestSource,
    ServingCounts,
    Total,
)
from disagg_exporter.model.snapshot import (
    CollectorStatus,
    DaemonCounts,
    GpuPrice,
    RouterCounts,
    RouterEngine,
    RouterPage,
    RouterStatus,
    Snapshot,
    WorkerStatus,
)
from disagg_exporter.model.steps import Assignment, Step, StepTotals, StreamKey, WorkWindow

# fmt: off
__all__ = [
    "ENDINGS", "FORGOTTEN_MODEL", "GPU_SLICES", "MICROJOULES_PER_JOULE", "PROMPT_TOKENS",
    "REJECTIONS", "SLICE_NS_PER_GPU_SECOND", "ActivityCell", "Assignment", "Bottleneck", "BusyGpus",
    "CapacitySource", "Cell", "CollectorStatus", "CurveSample", "DaemonCounts", "DecodeLimit",
    "Device", "DeviceAccount", "DeviceFailure", "DeviceReading", "DeviceSweep", "Direction",
    "DynamoWorker", "EngineAccount", "EngineCapacity", "EnginePage", "EngineState", "EngineStatus",
    "ExpectedSteps", "ForeignWork", "FrontCounts", "GpuPrice", "GpuShare", "Histogram",
    "Interference", "KvQueue", "LimitConfidence", "LinkKind", "LinkTraffic", "Method", "ModelSize",
    "Part", "PartAccount", "Phase", "PrefillLimit", "PromptTokenAccount", "Reason", "ReferenceStep",
    "RequestAccount", "RequestAccounts", "RequestSource", "Role", "RouterCounts", "RouterEngine",
    "RouterPage", "RouterStatus", "ServingCounts", "ShareConfidence", "Snapshot", "Split", "Step",
    "StepLimits", "StepTotals", "StreamKey", "Throttle", "TlsStatus", "TokenAccount", "Total",
    "Unit", "Use", "WorkWindow", "WorkerStatus",
]
# fmt: on
