"""Keeps periodic and blocking work running, and exposes its failures."""

from disagg_exporter.collectors.daemon_threads import (
    DaemonExecutor,
    DaemonThread,
    DaemonThreads,
    NoThreadError,
)
from disagg_exporter.collectors.event_loop import Backoff, CallbackErrors, keep_running
from disagg_exporter.collectors.health import CollectorHealth, explain, is_foreseen

__all__ = [
    "Backoff",
    "CallbackErrors",
    "CollectorHealth",
    "DaemonExecutor",
    "DaemonThread",
    "DaemonThreads",
    "NoThreadError",
    "explain",
    "is_foreseen",
    "keep_running",
]
