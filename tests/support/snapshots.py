"""A small and complete snapshot as the daemon would make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    ActivityCell,
    Bottleneck,
    BusyGpus,
    Cell,
    CollectorStatus,
    CurveSample,
    DaemonCounts,
    DecodeLimit,
    Device,
    DeviceAccount,
    DeviceReading,
    Direction,
    DynamoWorker,
    EngineAccount,
    EngineCapacity,
    EnginePage,
    EngineState,
    EngineStatus,
    ExpectedSteps,
    ForeignWork,
    GpuPrice,
    GpuShare,
    Histogram,
    Interference,
    KvQueue,
    LimitConfidence,
    LinkKind,
    LinkTraffic,
    Method,
    Part,
    PartAccount,
    Phase,
    PrefillLimit,
    PromptTokenAccount,
    Reason,
    ReassignStatus,
    ReferenceStep,
    RequestAccount,
    RequestAccounts,
    RequestSource,
    Role,
    RouterCounts,
    RouterEngine,
    RouterPage,
    RouterStatus,
    ServingCounts,
    Snapshot,
    Split,
    StepLimits,
    Throttle,
    TlsStatus,
    TokenAccount,
    Total,
    Unit,
    Use,
    WorkerStatus,
)

SECOND = 1_000_000_000
TAKEN_NS = 1_000 * SECOND
FRESH_UNTIL_NS = TAKEN_NS + 10 * SECOND
WALL_OFFSET_SECONDS = 1_750_000_000.0
NOW_SECONDS = WALL_OFFSET_SECONDS + TAKEN_NS / SECOND
"""When it was taken, in Unix time."""
GIVEN_UP = WorkerStatus(
    *("prefill-0", "failed", 5, None),
    since_timestamp_seconds=NOW_SECONDS - 90,
    cause="ended unasked by signal 9 (Killed)",
)
"""The golden node's worker, had it crashed repeatedly."""
WORKER_STATES = ("stopped", "starting", "ready", "draining", "backoff", "failed")

GPU_0, GPU_1, GPU_2 = "GPU-aaaa0000", "GPU-bbbb1111", "MIG-cccc2222"


PREFILL_SERVING = ServingCounts(
    {
        Total.FINISHED_REQUESTS: 1_200.0,
        Total.ARRIVED_REQUESTS: 1_204.0,
        Total.ENDED_STOP: 0.0,
        Total.ENDED_LENGTH: 1_200.0,
        Total.REJECTED_FOR_REQUESTS: 7.0,
        Total.COMPUTED_PROMPT_TOKENS: 123_000.0,
        Total.CACHED_PROMPT_TOKENS: 41_000.0,
        Total.TRANSFERRED_PROMPT_TOKENS: 0.0,
        Total.QUEUE_SECONDS: 96.0,
        Total.QUEUE_REQUESTS: 1_200.0,
        Total.FIRST_TOKEN_SECONDS: 240.0,
        Total.FIRST_TOKEN_REQUESTS: 1_200.0,
        Total.EXPIRED_TRANSFERS: 2.0,
    },
    Histogram((0.1, 1.0), (900.0, 1_200.0, 1_200.0), 300.0),
    prompt_tokens=Histogram((100.0, 1000.0, 10_000.0), (900.0, 1_180.0, 1_199.0, 1_200.0), 164e3),
)
DECODE_SERVING = ServingCounts(
    {
        Total.FINISHED_REQUESTS: 1_198.0,
        Total.PREEMPTIONS: 4.0,
        Total.QUEUE_SECONDS: 30.0,
        Total.QUEUE_REQUESTS: 1_198.0,
        Total.FIRST_TOKEN_SECONDS: 24.0,
        Total.FIRST_TOKEN_REQUESTS: 1_198.0,
        Total.TRANSFERS: 1_200.0,
        Total.TRANSFER_SECONDS: 18.0,
        Total.TRANSFER_BYTES: 5e11,
        Total.FAILED_TRANSFERS: 1.0,
    },
    Histogram((0.1, 1.0), (1_100.0, 1_198.0, 1_198.0), 54.0),
    Histogram((0.01, 0.1), (5_000.0, 9_000.0, 9_001.0), 120.0),
)


_SECONDS = Histogram((0.1, 1.0), (300.0, 1_190.0, 1_198.0), 350.0)
_TOKENS = Histogram((100.0, 1_000.0), (200.0, 1_150.0, 1_198.0), 420_000.0)
REQUESTS = RequestAccounts(
    (
        RequestAccount(
            RequestSource.ENGINE,
            *("llama", "serving"),
            arrivals=1_204.0,
            waiting=3.0,
            ends={"stop": 1_100.0, "length": 90.0, "error": 8.0},
            rejections={(Role.PREFILL, "queued_requests"): 7.0},
            prompt_tokens=_TOKENS,
            output_tokens=_TOKENS,
        ),
        RequestAccount(
            RequestSource.POOLS,
            *("llama", "serving"),
            time_to_first_token=_SECONDS,
            duration=_SECONDS,
        ),
    ),
    (PartAccount(Part.PREFILL, "llama", "serving", _SECONDS),),
    (PromptTokenAccount(Role.PREFILL, "cached", "llama", "serving", 41_000.0),),
)


_Key = TypeVar("_Key", Cell, ActivityCell)


def slice_ns(gpu_seconds: Mapping[_Key, float]) -> dict[_Key, int]:
    """Return GPU-seconds in the unit of accounts."""
    return {key: round(seconds * SLICE_NS_PER_GPU_SECOND) for key, seconds in gpu_seconds.items()}


def golden_snapshot() -> Snapshot:
    """Return a node with every kind of data, so that each exported family has a row on its page.

    One prefill engine on a whole GPU, one decode engine on another, known by its page alone and
    down, and a slice of a third GPU that serves nobody and whose driver fails.
    """
    slice_weight = 3 / 7
    return Snapshot(
        taken_ns=TAKEN_NS,
        wall_offset_seconds=WALL_OFFSET_SECONDS,
        fresh_until_ns=FRESH_UNTIL_NS,
        gpu_price=GpuPrice("EUR", 2.5),
        unexpected_failures={"nvml": 0, "engine": 1},
        left_out_engines=2,
        process={
            "process_cpu_seconds_total": 12.5,
            "process_virtual_memory_bytes": 400e6,
            "process_resident_memory_bytes": 90e6,
            "process_start_time_seconds": WALL_OFFSET_SECONDS + 900.0,
            "process_open_fds": 60.0,
            "process_max_fds": 1024.0,
        },
        devices=(
            Device(GPU_0, 0, "NVIDIA H100 80GB HBM3", "nvidia0", "00000000:18:00.0"),
            Device(GPU_1, 1, "NVIDIA H100 80GB HBM3", "nvidia1", "00000000:2A:00.0"),
            Device(GPU_2, 2, "NVIDIA A100 MIG 3g.20gb", "nvidia2", weight=slice_weight),
        ),
        readings=(
            DeviceReading(
                GPU_0,
                TAKEN_NS,
                busy_ratio=0.75,
                memory_used_bytes=60_000_000_000,
                memory_total_bytes=85_520_809_984,
                power_watts=512.5,
                sm_clock_hertz=1.98e9,
                sm_ratio=0.5,
                tensor_ratio=0.375,
                dram_ratio=0.25,
                throttles=(Throttle.POWER_CAP,),
                ecc_corrected_errors=2,
                ecc_uncorrected_errors=0,
                xid_errors=((31, 2), (79, 1)),
                temperature_celsius=61.0,
                memory_temperature_celsius=72.0,
                power_limit_watts=700.0,
                traffic=(LinkTraffic(LinkKind.NVLINK, Direction.SENT, 5e11),),
            ),
            # A driver that reports only memory.
            DeviceReading(GPU_1, TAKEN_NS, memory_used_bytes=0, memory_total_bytes=85_520_809_984),
        ),
        accounts=(
            DeviceAccount(
                Device(GPU_0, 0, "NVIDIA H100 80GB HBM3", "nvidia0", "00000000:18:00.0"),
                Role.PREFILL,
                TAKEN_NS - 100 * SECOND,
                TAKEN_NS - 6 * SECOND,
                slice_ns(
                    {
                        Cell(Role.NONE, Use.IDLE, Reason.STARTING, "llama"): 20.0,
                        Cell(Role.PREFILL, Use.PREFILL, model_name="llama"): 60.25,
                        Cell(Role.PREFILL, Use.DECODE, model_name="llama"): 1.5,
                        Cell(Role.PREFILL, Use.IDLE, Reason.NO_REQUEST, "llama"): 10.0,
                        Cell(Role.PREFILL, Use.IDLE, Reason.HOST_GAP, "llama"): 1.25,
                        Cell(Role.PREFILL, Use.UNATTRIBUTED, Reason.STRANGER, "llama"): 1.0,
                    }
                ),
                active_slice_ns=slice_ns(
                    {
                        ActivityCell(Role.NONE, Unit.GRAPHICS, "llama"): 2.0,
                        ActivityCell(Role.PREFILL, Unit.GRAPHICS, "llama"): 62.5,
                        ActivityCell(Role.PREFILL, Unit.SM, "llama"): 40.5,
                        ActivityCell(Role.PREFILL, Unit.TENSOR, "llama"): 30.25,
                        ActivityCell(Role.PREFILL, Unit.DRAM, "llama"): 15.125,
                    }
                ),
                read_slice_ns=slice_ns(
                    {ActivityCell(Role.NONE, unit, "llama"): 20.0 for unit in Unit}
                    | {ActivityCell(Role.PREFILL, unit, "llama"): 74.0 for unit in Unit}
                ),
                throttled_ns={**dict.fromkeys(Throttle, 0), Throttle.POWER_CAP: 12_500_000_000},
                microjoules={
                    Cell(Role.NONE, Use.IDLE, model_name="llama"): 1_400_000_000,
                    Cell(Role.PREFILL, Use.PREFILL, model_name="llama"): 36_150_000_000,
                    Cell(Role.PREFILL, Use.DECODE, model_name="llama"): 600_500_000,
                    Cell(Role.PREFILL, Use.IDLE, model_name="llama"): 787_500_000,
                    Cell(Role.PREFILL, Use.UNATTRIBUTED, model_name="llama"): 250_000_000,
                },
                metered_slice_ns=slice_ns(
                    {
                        Cell(Role.NONE, Use.IDLE, model_name="llama"): 18.0,
                        Cell(Role.PREFILL, Use.PREFILL, model_name="llama"): 60.25,
                        Cell(Role.PREFILL, Use.DECODE, model_name="llama"): 1.5,
                        Cell(Role.PREFILL, Use.IDLE, model_name="llama"): 11.25,
                        Cell(Role.PREFILL, Use.UNATTRIBUTED, model_name="llama"): 1.0,
                    }
                ),
                watts={Use.PREFILL: 640.5, Use.IDLE: 105.0},
            ),
            DeviceAccount(
                Device(GPU_1, 1, "NVIDIA H100 80GB HBM3", "nvidia1", "00000000:2A:00.0"),
                Role.DECODE,
                TAKEN_NS - 100 * SECOND,
                TAKEN_NS - 6 * SECOND,
                slice_ns(
                    {
                        Cell(Role.DECODE, Use.DECODE, model_name="llama"): 80.0,
                        Cell(Role.DECODE, Use.IDLE, Reason.KV_WAIT, "llama"): 14.0,
                    }
                ),
            ),
            DeviceAccount(
                Device(GPU_2, 2, "NVIDIA A100 MIG 3g.20gb", "nvidia2", weight=slice_weight),
                Role.NONE,
                TAKEN_NS - 100 * SECOND,
                TAKEN_NS - 30 * SECOND,
                slice_ns(
                    {
                        Cell(Role.NONE, Use.IDLE, Reason.NO_ENGINE): 15.0,
                        Cell(Role.NONE, Use.UNOBSERVED, Reason.NO_READING): 15.0,
                    }
                ),
            ),
        ),
        engine_accounts=(
            EngineAccount(
                "prefill-0",
                Role.PREFILL,
                "llama",
                "",
                TAKEN_NS - 6 * SECOND,
                Method.STEPS,
                {(Role.PREFILL, Phase.PREFILL): 60.25, (Role.PREFILL, Phase.DECODE): 1.5},
                {(Role.PREFILL, Phase.PREFILL): 123_456, (Role.PREFILL, Phase.DECODE): 42},
                cut_seconds=0.125,
                split=Split.MODEL,
                residual_ratio=0.0625,
                fitted_steps=5_000,
                share_error_ratio=0.015625,
                expected_steps=ExpectedSteps((8 * 10**9, 0, 4 * 10**9), (10**10, 0, 5 * 10**9)),
                interference=Interference(12.5, 0.25, 150.0, 0.0078125),
                reference_steps=(
                    ReferenceStep("empty", 0.0078125, 0.0009765625),
                    ReferenceStep("prefill_256_decode_16", 0.015625, 0.001953125),
                ),
                unreported_step_seconds=0.25,
                lost_records=2,
                late_records=1,
                running=3,
                waiting=1,
                deferred=0,
                kv_usage_ratio=0.5,
            ),
            EngineAccount(
                "decode-0",
                Role.DECODE,
                "llama",
                "",
                TAKEN_NS - 6 * SECOND,
                Method.ROLE,
                {(Role.DECODE, Phase.DECODE): 80.0},
                {(Role.DECODE, Phase.DECODE): 9_000},
            ),
        ),
        tokens=(
            TokenAccount(
                Role.PREFILL, Phase.PREFILL, "llama", "", 123_456, 60 * SLICE_NS_PER_GPU_SECOND
            ),
            TokenAccount(Role.PREFILL, Phase.DECODE, "llama", "", 42),
            # An engine that has ended computed 500 of these.
            TokenAccount(
                Role.DECODE, Phase.DECODE, "llama", "", 9_500, 80 * SLICE_NS_PER_GPU_SECOND
            ),
        ),
        busy=(
            BusyGpus(Role.PREFILL, Phase.PREFILL, "llama", "", "NVIDIA H100 80GB HBM3", 0.625),
            BusyGpus(Role.DECODE, Phase.DECODE, "llama", "", "NVIDIA H100 80GB HBM3", 1.0),
        ),
        busy_window_seconds=1.0,
        requests=REQUESTS,
        foreign_work=(ForeignWork(GPU_0, 0.125, 1 << 30), ForeignWork(GPU_1, 0.0, 0)),
        gpu_shares=(GpuShare("prefill-0", GPU_0, 0.4375),),
        capacities=(
            EngineCapacity(
                *("prefill-0", 0.625, PrefillLimit(31_500.0, LimitConfidence.BOTH, 288.0)),
                bottleneck=Bottleneck.COMPUTE,
                flops_per_second=494.7e12,
                bytes_per_second=0.67e12,
                prefill_curve=(CurveSample(256, 31_000.0), CurveSample(512, 33_500.0)),
                configured=StepLimits(8192, 64),
            ),
            EngineCapacity(
                *("decode-0", 0.25, None, DecodeLimit(512.0, LimitConfidence.ONE)),
                decode_curve=(CurveSample(16, 0.0078125), CurveSample(64, 0.015625)),
                configured=StepLimits(max_num_seqs=256),
            ),
        ),
        engines=(
            EngineStatus(
                "prefill-0",
                Role.PREFILL,
                "vllm",
                "0.32.0",
                "llama",
                (GPU_0,),
                EngineState.READY,
                up=True,
                source="config",
                confidence="certain",
                page=EnginePage("vllm", TAKEN_NS, "llama"),
                serving=PREFILL_SERVING,
                start_timestamp_seconds=1_750_000_000.0,
            ),
            EngineStatus(
                "decode-0",
                Role.DECODE,
                "vllm",
                "",
                "llama",
                (GPU_1,),
                EngineState.READY,
                up=False,
                source="config",
                confidence="certain",
                page=EnginePage(
                    "vllm",
                    TAKEN_NS,
                    "llama",
                    18.0,
                    0.0,
                    kv_usage_ratio=0.07,
                    kv_cache_tokens=180_000.0,
                    asleep=False,
                    kv_queues={KvQueue.TRANSFER: 2.0},
                ),
                serving=DECODE_SERVING,
                dynamo=DynamoWorker("5f6e72caecfe0dc0", registered=True),
            ),
            EngineStatus(
                "decode-0-node-1",
                Role.DECODE,
                "vllm",
                "",
                "",
                (),
                EngineState.READY,
                up=True,
                source="vllm",
                confidence="high",
                follows="10.0.0.7:29501",
                role_changes=1,
                tls=TlsStatus("pinned"),
            ),
        ),
        workers=(
            WorkerStatus("prefill-0", "ready", 0, WALL_OFFSET_SECONDS + 900.5),
            WorkerStatus("decode-0", "backoff", 3, None, True, WALL_OFFSET_SECONDS + 1007.5),
        ),
        collectors=(
            CollectorStatus("nvml", True, 0.0025, WALL_OFFSET_SECONDS + 1000),
            CollectorStatus("engine:decode-0", False, 1.0, None),
        ),
        worker_states=WORKER_STATES,
        simulated=True,
        daemon_counts=DaemonCounts(
            {("pause", "done"): 2, ("unknown", "denied"): 1},
            {"not_allowed": 1, "last_of_role": 0},
            {"displaced": 2, "malformed": 0},
            hook_events={"delivered": 3},
            reassigned=(
                ReassignStatus("prefill-0"),
                ReassignStatus(
                    "decode-0", "prefill", {"done": 2, "rolled_back": 1}, 1, 2.5, 31.25, 1.5
                ),
            ),
        ),
        router=RouterStatus(
            (
                RouterEngine("http://127.0.0.1:8100", "prefill-0", Phase.PREFILL),
                RouterEngine("http://127.0.0.1:8200", "decode-0", Phase.DECODE),
            ),
            RouterCounts(1_200.0, {(Phase.PREFILL, "http://127.0.0.1:8100"): 3.0}),
            RouterPage(
                TAKEN_NS,
                RouterCounts(200.0, {(Phase.PREFILL, "http://127.0.0.1:8100"): 1.0}),
                {Phase.PREFILL: 5.0, Phase.DECODE: 18.0},
                5.0,
                {"http://127.0.0.1:8100": True, "http://127.0.0.1:8200": False},
            ),
        ),
    )
