"""The colours: each name has one colour on every panel of every dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

BLUE, ORANGE, GREY, YELLOW, VIOLET = "#3274D9", "#FF780A", "#8E8E8E", "#F2CC0C", "#8F3BB8"
GREEN, RED, TEAL, PINK, DARK = "#56A64B", "#E02F44", "#3BB3A9", "#FF85A2", "#5C6370"

PHASES: Mapping[str, str] = MappingProxyType(
    {
        "prefill": BLUE,
        "decode": ORANGE,
        "idle": GREY,
        "unattributed": YELLOW,
        "unobserved": VIOLET,
    }
)
"""What a GPU does. A pool has the colour of its phase."""

ROLES: Mapping[str, str] = MappingProxyType(
    {
        "prefill": BLUE,
        "decode": ORANGE,
        "mixed": GREEN,
        "encode": TEAL,
        "none": GREY,
        "unknown": DARK,
    }
)

SPLITS: Mapping[str, str] = MappingProxyType(
    {".* 1 min$": "#8EE3DA", ".* 5 min$": TEAL, ".* pools$": GREY}
)
"""A ratio over two windows in two shades of one colour, and the ratio of the pool sizes in grey."""

ROLE_TONES: Mapping[str, str] = MappingProxyType(
    {f"^{role}\\b.*": colour for role, colour in ROLES.items()}
)
"""Series whose names begin with their role, each in a shade of the role's colour."""

PLANNED: Mapping[str, str] = MappingProxyType(
    {
        "there": GREY,
        "current": GREY,
        "needed, 95 %": PINK,
        "needed, 50 %": "#8EE3DA",
        "recommended": TEAL,
    }
)
"""GPUs of one role, or of all: current, needed, and recommended by the plan."""

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "no_request": GREY,
        "kv_wait": RED,
        "host_gap": PINK,
        "starting": TEAL,
        "draining": GREEN,
        "no_engine": DARK,
        "stranger": RED,
        "no_record": YELLOW,
        "dummy": TEAL,
        "no_reading": VIOLET,
        "no_daemon": GREY,
    }
)
"""Why a second was idle, unattributed or unobserved."""

STEP_KINDS: Mapping[str, str] = MappingProxyType(
    {"context": BLUE, "generation": ORANGE, "mixed": GREEN, "dummy": GREY}
)
"""What a step computed; context and generation are vLLM's names for prefill and decode."""

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "prefill tensor": "#1F60C4",
        "prefill sm": "#5794F2",
        "prefill dram": "#A5C8FF",
        "decode tensor": "#B85000",
        "decode sm": "#FF9830",
        "decode dram": "#FFC98A",
        "mixed tensor": "#2F7A24",
        "mixed sm": GREEN,
        "mixed dram": "#A8DDA0",
    }
)
"""Parts of the GPUs of each pool, in shades of the pool's colour."""

THROTTLING: Mapping[str, str] = MappingProxyType(
    {
        "power_cap": TEAL,
        "thermal": RED,
        "hw_slowdown": PINK,
        "sync_boost": GREEN,
        "other": GREY,
    }
)

WORKER_STATES: Mapping[str, str] = MappingProxyType(
    {
        "stopped": DARK,
        "starting": TEAL,
        "ready": GREEN,
        "draining": "#8EE3DA",
        "backoff": PINK,
        "failed": RED,
    }
)

STAGES: Mapping[str, str] = MappingProxyType(
    {"queue": TEAL, "prefill": BLUE, "kv_transfer": RED, "first_decode": ORANGE}
)
"""Stages of a request before its first token."""

QUEUES: Mapping[str, str] = MappingProxyType(
    {"bootstrap": PINK, "prealloc": TEAL, "inflight": "#8EE3DA", "transfer": RED}
)
"""Queues between prefill and decode."""

LINKS: Mapping[str, str] = MappingProxyType(
    {
        "nvlink sent": TEAL,
        "nvlink received": "#8EE3DA",
        "pcie sent": PINK,
        "pcie received": "#FFC2D0",
    }
)
"""Traffic on a GPU's links."""

TRANSFER_FAILURES: Mapping[str, str] = MappingProxyType(
    {"transfer": RED, "notification": PINK, "expired": TEAL}
)
"""Reasons for failed KV transfers."""

SPREAD: Mapping[str, str] = MappingProxyType({"p50": "#8AB8FF", "p95": "#FFB357", "p99": "#FF7383"})
"""Percentiles, from the median to the tail."""

BOUNDS: Mapping[str, str] = MappingProxyType(
    {
        "none": GREEN,
        "compute": BLUE,
        "bandwidth": ORANGE,
        "kv": RED,
        "host": PINK,
        "unknown": DARK,
    }
)
"""What keeps an engine from doing more."""

TONES: Sequence[tuple[float | None, str]] = (
    (None, "#22252B"),
    (0.05, "#123A36"),
    (0.2, "#1B5C55"),
    (0.4, "#268076"),
    (0.6, "#3BB3A9"),
    (0.8, "#8EE3DA"),
    (0.95, "#F2FFFD"),
)
"""Shades for shares, dark to bright, in no phase's colour."""

VERDICTS: Mapping[str, str] = MappingProxyType(
    {
        "no prefill engine is left": RED,
        "no decode engine is left": RED,
        "no engine is left": RED,
        "prefill is short of GPUs": RED,
        "decode is short of GPUs": RED,
        "both pools are filling up": YELLOW,
        "the pools are in balance": GREEN,
        "nothing to do, both below 50 %": GREEN,
        "both below 50 %, yet tokens are late": YELLOW,
        "mixed engines are full": RED,
        "mixed engines are filling up": YELLOW,
        "mixed engines have room": GREEN,
        "what decode can take is not learned yet": GREY,
        "what prefill can take is not learned yet": GREY,
    }
)
"""The verdicts on a model that alerts/rules/disagg-recording-verdict.yaml records."""
