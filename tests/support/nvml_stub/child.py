"""Reads devices as told on stdin: one JSON list (operation, arguments …) a line, one answer each.

Run as a program: pynvml finds its library once in a process's life, so each driver needs a
process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from disagg_exporter.devices.nvml.device_source import NvmlDevices
from disagg_exporter.devices.source import DevicesUnavailable


class Session:
    """One source at a time, and what else may happen to the driver in the same process."""

    def __init__(self) -> None:
        self._source: NvmlDevices | None = None

    def open(self) -> str:
        self._source = NvmlDevices()
        return self._source.name

    def inventory(self) -> list[dict[str, Any]]:
        assert self._source is not None
        return [asdict(device) for device in self._source.inventory()]

    def sweep(self, now_ns: int | None = None) -> dict[str, Any]:
        assert self._source is not None
        return asdict(self._source.sweep(time.monotonic_ns() if now_ns is None else now_ns))

    def shut_down_behind_its_back(self) -> None:
        import pynvml

        pynvml.nvmlShutdown()

    def driver_version(self) -> str:
        import pynvml

        return str(pynvml.nvmlSystemGetDriverVersion())

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def main() -> None:
    session = Session()
    for line in sys.stdin:
        operation, *arguments = json.loads(line)
        try:
            answer = {"answer": getattr(session, operation)(*arguments)}
        except DevicesUnavailable as unavailable:
            answer = {"unavailable": [unavailable.why, unavailable.way_out]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
