"""A stub NVIDIA driver, and a process of its own in which the real pynvml loads it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import disagg_exporter
from disagg_exporter.devices.source import DevicesUnavailable
from disagg_exporter.model import (
    Device,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    Direction,
    LinkKind,
    LinkTraffic,
    Throttle,
)
from support.nvml_stub.state import State

_HERE = Path(__file__).parent
_ANSWER_SECONDS = 30
STATE_ENVIRONMENT = "NVML_STUB_STATE"


def build_stub(folder: Path, *, old_driver: bool = False) -> Path:
    """Compile the stub into a folder for LD_LIBRARY_PATH and return that folder."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("gcc")
    subprocess.run(
        [
            *(compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *(["-DOLD_DRIVER"] if old_driver else []),
            "-Wl,-soname,libnvidia-ml.so.1",
            *("-o", str(folder / "libnvidia-ml.so.1"), str(_HERE / "stub.c")),
        ],
        check=True,
        timeout=60,
    )
    return folder


class NvmlChild:
    """`NvmlDevices` in a fresh process, driven from here.

    Args:
        library: The folder that holds the driver's library; None is whatever the host has.
        state: The stub's state file.
    """

    def __init__(self, library: Path | None, state: Path | None = None) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(Path(disagg_exporter.__file__).parents[1])
        if library is not None:
            environment["LD_LIBRARY_PATH"] = str(library)
        if state is not None:
            environment[STATE_ENVIRONMENT] = str(state)
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self) -> None:
        """Open the driver there.

        Raises:
            DevicesUnavailable: As it was raised there.
        """
        self.call("open")

    def inventory(self) -> tuple[Device, ...]:
        return tuple(Device(**device) for device in self.call("inventory"))

    def sweep(self, *now_ns: int) -> DeviceSweep:
        """A sweep at `now_ns`, or at the true time."""
        told = self.call("sweep", *now_ns)
        return DeviceSweep(
            told["t_ns"],
            tuple(_reading(reading) for reading in told["readings"]),
            tuple(_failure(failure) for failure in told["failures"]),
        )

    def call(self, operation: str, *arguments: int) -> Any:
        """Do one operation of child.py there and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([operation, *arguments]).encode() + b"\n")
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"no answer to {operation} (exit status {self._process.poll()})"
        answer = json.loads(line)
        if "unavailable" in answer:
            raise DevicesUnavailable(*answer["unavailable"])
        return answer["answer"]


def _failure(told: dict[str, Any]) -> DeviceFailure:
    return DeviceFailure(told["gpu"], told["why"], _pairs(told["xid_errors"]))


def _pairs(told: list[list[Any]] | None) -> Any:
    return None if told is None else tuple(map(tuple, told))


def _reading(told: dict[str, Any]) -> DeviceReading:
    throttles = told["throttles"]
    paired = ("xid_errors", "process_ratios", "process_memory")
    pairs = {name: _pairs(told[name]) for name in paired}
    lists = {
        **pairs,
        "pids": tuple(told["pids"]),
        "traffic": tuple(
            LinkTraffic(LinkKind(link), Direction(direction), count)
            for link, direction, count in told["traffic"]
        ),
        "throttles": None if throttles is None else tuple(map(Throttle, throttles)),
    }
    return DeviceReading(**{**told, **lists})


@dataclass(frozen=True, slots=True)
class StubDriver:
    """A process under the stub, and the state that the stub tells it."""

    child: NvmlChild
    state: State
