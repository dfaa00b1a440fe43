"""Assigns devices to workers; refuses overlaps and requests that cannot be met."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.problems import Finding, YamlPath, config_error, path_text
from disagg_exporter.devices.source import DeviceKind, pseudo_device
from disagg_exporter.model import Device
from disagg_exporter.model.counted import counted

# The most devices that are assumed, however many a file asks for; the most that are listed.
_MOST_ASSUMED, _MOST_SHOWN = 16_384, 64

_NOT_HELD: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of one worker, in the order of its node file.

    `on_gpus` distinguishes a real GPU from a simulated one and from the pseudo-device of a CPU.
    """

    worker: str
    devices: tuple[Device, ...]

    @property
    def on_gpus(self) -> bool:
        """Whether the engine's environment names the GPUs that it may see."""
        return any(device.device.startswith("nvidia") for device in self.devices)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs, as assignments and metrics carry them."""
        return tuple(device.gpu for device in self.devices)


@dataclass(frozen=True)
class Layout:
    """The devices of each worker, and the free devices."""

    placements: tuple[Placement, ...]
    free: tuple[Device, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device of the node, listed once, those in use first."""
        used = {d.gpu: d for placed in self.placements for d in placed.devices}
        return (*used.values(), *self.free)

    def of(self, worker: str) -> Placement:
        """The placement of a worker of the configuration."""
        return self._by_worker[worker]

    @cached_property
    def _by_worker(self) -> dict[str, Placement]:
        return {placed.worker: placed for placed in self.placements}


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A worker's request: a number of any devices, or certain ones by index or UUID.

    `position` is the worker's place in the node file.
    """

    position: int
    name: str
    gpus: int | tuple[int | str, ...]

    @property
    def label(self) -> str:
        """The worker's name and its place in the file."""
        place = path_text(("workers", self.position))
        return place if self.name == place else f"{self.name} ({place})"


@dataclass(slots=True)
class Allocation:
    """The devices assigned so far, by the request that got them, and the unmet requests."""

    devices: tuple[Device, ...]
    owners: dict[str, GpuRequest] = field(default_factory=dict)
    given: dict[int, tuple[Device, ...]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def free(self) -> tuple[Device, ...]:
        """The unassigned devices, lowest index first."""
        left = [device for device in self.devices if device.gpu not in self.owners]
        return tuple(sorted(left, key=lambda device: device.index))

    def refuse(self, request: GpuRequest, message: str, hint: str = "") -> None:
        """Record what is wrong with the GPUs that a worker requests."""
        path = ("workers", request.position, "gpus")
        self.findings.append(Finding(path, message, hint))


def place(
    config: NodeConfig,
    devices: tuple[Device, ...] | None,
    source: str = "",
    lines: Mapping[YamlPath, int] | None = None,
    *,
    held: Mapping[str, str] = _NOT_HELD,
) -> Layout:
    """Assign every worker its devices.

    Args:
        config: A configuration without problems of its own.
        devices: The node's devices; None or empty on a node without GPUs, where each worker gets a
            pseudo-device (accounting A1).
        source: What to call the node file in the report.
        lines: The line of each of its paths (`nodefile.read`), if the report is to show them.
        held: By GPU, the worker whose process an earlier daemon left there. A worker that asks by
            count keeps its own, and gets another's only if no other is left.

    Raises:
        ConfigError: Devices that do not exist, belong to two workers or are too few.
    """
    requests = [
        GpuRequest(place, worker.name, worker.gpus) for place, worker in enumerate(config.workers)
    ]
    allocation = allocate(requests, devices or (), held)
    if allocation.findings:
        raise config_error(allocation.findings, source or "node file", lines)
    placements = tuple(
        Placement(worker.name, allocation.given[position])
        for position, worker in enumerate(config.workers)
    )
    return Layout(placements, allocation.free)


def place_among(
    layout: Layout,
    config: NodeConfig,
    source: str = "",
    *,
    held: Mapping[str, str] = _NOT_HELD,
) -> Layout:
    """Assign devices to the workers of a changed file: those placed before keep theirs.

    Args:
        layout: The previous assignment; any other device in it is free again.
        config: The changed file.
        source: As for `place`.
        held: By GPU, the worker whose process runs there; a new one gets it only if no other is
            left.

    Raises:
        ConfigError: As for `place`; also if a named device is kept by a worker that asked by count.
    """
    had = {placed.worker: placed for placed in layout.placements}
    gpus = tuple(device for device in layout.devices if not device.is_pseudo)
    requests = [
        GpuRequest(place, worker.name, had[worker.name].gpus if worker.name in had else worker.gpus)
        for place, worker in enumerate(config.workers)
        # Without GPUs no devices are shared out.
        if gpus or worker.name not in had
    ]
    allocation = allocate(requests, gpus, held)
    if allocation.findings:
        raise config_error(allocation.findings, source or "node file")
    given = {request.name: allocation.given[request.position] for request in requests}
    placements = (
        Placement(worker.name, given[worker.name]) if worker.name in given else had[worker.name]
        for worker in config.workers
    )
    return Layout(tuple(placements), allocation.free)


def allocate(
    requests: Sequence[GpuRequest],
    devices: Sequence[Device],
    held: Mapping[str, str] = _NOT_HELD,
) -> Allocation:
    """Assign devices: first those requested individually, then counts from what is left.

    Args:
        requests: The workers' requests.
        devices: The node's devices.
        held: As for `place`.
    """
    allocation = Allocation(tuple(devices))
    if not devices:
        _allocate_cpu(allocation, requests)
        return allocation
    called: dict[object, list[Device]] = {}
    for device in devices:
        for name in (device.index, device.gpu):
            called.setdefault(name, []).append(device)
    for request in requests:
        if not request.gpus:
            message = "no GPUs given; on a node with GPUs every worker needs its own"
            hint = "say how many (gpus: 1) or which (gpus: [0])"
            allocation.findings.append(Finding(("workers", request.position), message, hint))
        elif isinstance(request.gpus, tuple):
            _allocate_named(allocation, request, request.gpus, called)
    free = deque(allocation.free)
    names = frozenset(request.name for request in requests)
    for request in requests:
        if isinstance(request.gpus, int) and request.gpus:
            if held:
                free = deque(sorted(free, key=partial(_reluctance, request.name, names, held)))
            _allocate_any(allocation, request, request.gpus, free)
    return allocation


def _reluctance(name: str, names: Collection[str], held: Mapping[str, str], device: Device) -> int:
    """How late a worker is to get a device: its own, then free ones, then those of others."""
    holder = held.get(device.gpu)
    if holder in (name, None):
        return 0 if holder else 1
    # A worker of the file comes back to its own; what no file names any more has no other claim.
    return 3 if holder in names else 2


def assume(config: NodeConfig) -> tuple[Device, ...] | None:
    """Return devices as the file implies them, to check it on another machine than its node.

    None if it implies none: a node without GPUs.
    """
    asked = [item for worker in config.workers for item in _named(worker)]
    counted = sum(worker.gpus for worker in config.workers if isinstance(worker.gpus, int))
    if config.devices is DeviceKind.CPU:
        return None
    if not (asked or counted):
        real = config.devices in (DeviceKind.NVML, DeviceKind.DCGM)
        return (_assumed(0, "index 0"),) if real else None
    highest = max((item for item in asked if isinstance(item, int)), default=-1)
    plain = min(highest + 1 + counted, _MOST_ASSUMED)
    uuids = dict.fromkeys(item for item in asked if isinstance(item, str))
    by_index = [_assumed(index, f"index {index}") for index in range(plain)]
    by_uuid = [_assumed(plain + place, uuid) for place, uuid in enumerate(uuids)]
    return (*by_index, *by_uuid)


def _named(worker: Worker) -> tuple[int | str, ...]:
    return () if isinstance(worker.gpus, int) else worker.gpus


def _assumed(index: int, uuid: str) -> Device:
    return Device(gpu=uuid, index=index, gpu_name="", device=f"nvidia{index}")


def _allocate_cpu(allocation: Allocation, requests: Sequence[GpuRequest]) -> None:
    for request in requests:
        allocation.given[request.position] = (pseudo_device(request.name, request.position),)
        if request.gpus:
            hint = "leave gpus out: without GPUs each worker is accounted as one device"
            allocation.refuse(request, "GPUs wanted, but this node has none", hint)


def _allocate_named(
    allocation: Allocation,
    request: GpuRequest,
    named: tuple[int | str, ...],
    called: Mapping[object, Sequence[Device]],
) -> None:
    got: list[Device] = []
    for item in named:
        found = called.get(item, ())
        message, hint = "", ""
        if not found:
            has = [
                device.index if isinstance(item, int) else device.gpu
                for device in allocation.devices
            ]
            more = ", …" if len(has) > _MOST_SHOWN else ""
            message = f"there is no GPU {item}"
            hint = f"this node has {', '.join(map(str, has[:_MOST_SHOWN]))}{more}"
        elif len(found) > 1:
            message = f"GPU {item} is divided into {len(found)} instances"
            hint = f"name them by UUID: {', '.join(device.gpu for device in found)}"
        elif (owner := allocation.owners.get(found[0].gpu)) is request:
            message, hint = f"GPU {item} is named twice", "name each GPU once"
        elif owner:
            message = f"GPU {item} already belongs to {owner.label}"
        else:
            allocation.owners[found[0].gpu] = request
            got.append(found[0])
        if message:
            allocation.refuse(request, message, hint)
    allocation.given[request.position] = tuple(got)


def _allocate_any(
    allocation: Allocation, request: GpuRequest, count: int, free: deque[Device]
) -> None:
    left = len(free)
    got = tuple(free.popleft() for _ in range(min(count, left)))
    allocation.given[request.position] = got
    for device in got:
        allocation.owners[device.gpu] = request
    if count > left:
        total = len(allocation.devices)
        allocation.refuse(request, f"{counted(count, 'GPU')} wanted, {left} of {total} free")
