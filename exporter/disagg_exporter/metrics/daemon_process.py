"""Metrics of the daemon's own process, by the client library's collector and under its names."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.process_collector import ProcessCollector


class DaemonProcess:
    """Reads the kernel's accounting of this process; nothing where there is no `/proc`.

    Args:
        proc: Replaceable for tests.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._collector = ProcessCollector(proc=proc, registry=None)

    def usage(self) -> Mapping[str, float]:
        """Return current CPU seconds, memory, descriptors and start time, by family."""
        metrics = self._collector.collect()
        return {sample.name: sample.value for metric in metrics for sample in metric.samples}
