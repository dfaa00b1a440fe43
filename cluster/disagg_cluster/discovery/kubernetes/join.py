"""What the kubelet says of who holds which GPU → which container has which of our devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disagg_cluster.discovery.kubernetes.types import GpuHolder
from disagg_exporter.model import Device


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container that holds GPUs of this node, whole or a share of each.

    `gpus` are UUIDs of our devices. `unresolved` are the kubelet's words for GPUs that none of our
    devices is surely the one of.
    """

    namespace: str
    pod_name: str
    container_name: str
    gpus: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()


def tenants(holders: Iterable[GpuHolder], devices: Sequence[Device]) -> tuple[Tenant, ...]:
    """Put the GPUs of each container together; the result is sorted by its names.

    A UUID is taken as it is, even where it is none of `devices`; any other name needs them. Older
    kubelets go on naming pods that have finished: only the API server knows.
    """
    devices_by_name = _names(devices)
    held: dict[tuple[str, str, str], dict[str, str]] = {}
    for holder in holders:
        key = (holder.namespace, holder.pod, holder.container)
        held.setdefault(key, {})[holder.gpu] = _resolve(holder.gpu, devices_by_name)
    return tuple(
        Tenant(
            *key,
            gpus=tuple(sorted({gpu for gpu in resolved.values() if gpu})),
            unresolved=tuple(sorted(told for told, gpu in resolved.items() if not gpu)),
        )
        for key, resolved in sorted(held.items())
    )


def _names(devices: Sequence[Device]) -> dict[str, str]:
    """Every name by which a kubelet may call a device; none that two devices would have."""
    found: dict[str, str] = {}
    for device in devices:
        names = {device.gpu, device.device}
        # The DRA driver of NVIDIA counts GPUs by the minor number of their device node.
        minor = device.device.removeprefix("nvidia")
        if minor != device.device and minor.isdecimal():
            names.add(f"gpu-{minor}")
        for name in names:
            found[name] = "" if name in found else device.gpu
    return found


def _resolve(told: str, devices_by_name: Mapping[str, str]) -> str:
    if told in devices_by_name:
        return devices_by_name[told]
    return told if told.startswith(("GPU-", "MIG-")) else ""
