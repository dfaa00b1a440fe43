"""How everything that runs on a clock is kept running, and how its failures are shown."""

from disagg_exporter.collectors.backoff import Backoff
from disagg_exporter.collectors.callbacks import CallbackErrors
from disagg_exporter.collectors.health import CollectorHealth, explain, is_foreseen
from disagg_exporter.collectors.keep_running import keep_running

__all__ = [
    "Backoff",
    "CallbackErrors",
    "CollectorHealth",
    "explain",
    "is_foreseen",
    "keep_running",
]
