"""How everything that runs on a clock is kept running, and how its failures are shown."""

from disagg_exporter.collectors.event_loop import Backoff, CallbackErrors, keep_running
from disagg_exporter.collectors.health import CollectorHealth, explain, is_foreseen

__all__ = ["Backoff", "CallbackErrors", "CollectorHealth", "explain", "is_foreseen", "keep_running"]
