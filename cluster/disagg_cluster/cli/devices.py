"""Opens the devices of a node as its file configures them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from disagg_cluster.config import NodeConfig
    from disagg_exporter.devices.source import DeviceChoice, DeviceSource


@contextlib.contextmanager
def opened_devices(config: NodeConfig, run_folder: Path) -> Iterator[DeviceSource]:
    """Open the devices of a node file, and close them at the end."""
    choice = chosen_devices(config, run_folder)
    if choice.fallback is not None:
        instead = {"dcgm": "GPUs are read from dcgm-exporter"}.get(
            choice.source.name, "no GPUs are read, engines run on the CPU"
        )
        click.echo(f"{instead}: {choice.fallback.why}", err=True)
    with contextlib.closing(choice.source):
        yield choice.source


_LATE_GPUS_SECONDS = 15.0


async def gpus_appeared(config: NodeConfig, run_folder: Path) -> str:
    """Wait until the devices of a node file that had none can be read; return what has them.

    A dcgm-exporter or a driver may start after the daemon, as after each boot.
    """
    import asyncio

    from disagg_exporter.devices.source import DevicesUnavailable

    while True:
        await asyncio.sleep(_LATE_GPUS_SECONDS)
        choice = await asyncio.to_thread(chosen_devices, config, run_folder)
        with contextlib.closing(choice.source), contextlib.suppress(DevicesUnavailable):
            if choice.source.inventory():
                return f"GPUs can be read now, by {choice.source.name}"


def chosen_devices(config: NodeConfig, run_folder: Path | None = None) -> DeviceChoice:
    """Open the devices of a node file; the caller closes them."""
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
    from disagg_exporter.devices.source import choose_devices

    folder = run_folder or config.run_folder or usual_run_dir(os.environ, os.getuid())
    return choose_devices(
        config.devices,
        nvml=lambda: _supplemented(_nvml(), config),
        dcgm=None if config.dcgm is None else lambda: _dcgm(config),
        sim=lambda: _simulated(folder / "sim", config.sim_devices),
    )


def _nvml() -> DeviceSource:
    from disagg_exporter.devices.nvml.device_source import NvmlDevices

    return NvmlDevices()


def _dcgm(config: NodeConfig) -> DeviceSource:
    from disagg_exporter.devices.dcgm.device_source import DcgmDevices

    if config.dcgm is None:
        raise ValueError("the file names no dcgm-exporter")
    return DcgmDevices(config.dcgm.url, config.dcgm.interval_seconds)


def _supplemented(nvml: DeviceSource, config: NodeConfig) -> DeviceSource:
    """Fill in what the driver does not report from a configured dcgm-exporter that answers."""
    from disagg_exporter.devices.source import DevicesUnavailable

    if config.dcgm is None:
        return nvml
    from disagg_exporter.devices.source import SupplementedDevices

    try:
        return SupplementedDevices(nvml, _dcgm(config))
    except DevicesUnavailable as unavailable:
        click.echo(f"GPUs are read without dcgm-exporter: {unavailable.why}", err=True)
        return nvml


def _simulated(folder: Path, count: int) -> DeviceSource:
    from disagg_exporter.devices.simulated import SimDevices

    return SimDevices(folder, count)
