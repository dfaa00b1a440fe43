"""Parses the kubelet's answer to the question which container holds which GPU.

The message is `v1.ListPodResourcesResponse` of Kubernetes' podresources API. It is parsed by hand:
five kinds of field out of a dozen are needed, and generated code would bring protobuf. Field
numbers: staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto and the device plugin page of
kubernetes.io (read 2026-11-21).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from disagg_exporter.errors import DisaggError

MAX_BYTES = 16 * 1024 * 1024
MAX_HOLDERS = 4096
# The longest name that Kubernetes allows.
MAX_NAME = 253

_POD_RESOURCES = 1
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _DEVICES, _DYNAMIC_RESOURCES = 1, 2, 5
_DEVICE_IDS = 2
_CLAIM_RESOURCES = 4
_DRIVER_NAME, _DEVICE_NAME = 2, 4
_CDI_DEVICES = 1
_CDI_NAME = 1

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_DRA_DRIVER = "gpu.nvidia.com"
_SAFE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# NVIDIA's device plugin: a GPU or MIG UUID, `::n` where it is handed out several times. GKE's: the
# device node, `/vgpuN` where shared, `/giN` for a MIG instance.
_PLUGIN_ID = re.compile(
    rf"(?P<gpu>GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d{{1,2}}/\d{{1,2}})(?:::(?P<share>\d{{1,4}}))?"
    r"|(?P<node>nvidia\d{1,3}(?:/gi\d{1,2})?)(?:/vgpu(?P<vgpu>\d{1,4}))?",
    re.ASCII,
)
_UUID_IN_TEXT = re.compile(rf"(?:GPU|MIG)-{_UUID}", re.ASCII)
_DRA_DEVICE = re.compile(r"gpu-\d{1,3}(?:-mig-[a-z0-9-]{1,60})?", re.ASCII)


class PodResourcesError(DisaggError):
    """The kubelet's answer cannot be fetched or parsed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A container and one GPU that the kubelet gave it.

    `gpu` is the kubelet's name for it: a GPU or MIG UUID, a device node of the host (`nvidia0`,
    `nvidia0/gi3`), or, under dynamic resource allocation, the driver's name for it (`gpu-0`).
    `share_of` is the number of the share under time-slicing or MPS, None for the whole device.
    """

    gpu: str
    pod: str
    namespace: str
    container: str
    share_of: int | None = None


def read_holders(message: bytes) -> tuple[GpuHolder, ...]:
    """Return the holders of GPUs, in the order of the message; other devices are skipped.

    Raises:
        PodResourcesError: The bytes are no such message, or it names more than `MAX_HOLDERS`.
    """
    holders: dict[GpuHolder, None] = {}
    for holder in _holders(message):
        holders[holder] = None
        if len(holders) > MAX_HOLDERS:
            raise PodResourcesError(f"the kubelet names more than {MAX_HOLDERS} holders of GPUs")
    return tuple(holders)


def _holders(message: bytes) -> Iterator[GpuHolder]:
    for pod in _each(message, _POD_RESOURCES):
        name, namespace = _name(pod, _NAME), _name(pod, _NAMESPACE)
        if not name or not namespace:
            continue
        for container in _each(pod, _CONTAINERS):
            container_name = _name(container, _CONTAINER_NAME)
            for gpu, share in _gpus(container):
                yield GpuHolder(gpu, name, namespace, container_name, share)


def _gpus(container: bytes) -> Iterator[tuple[str, int | None]]:
    for devices in _each(container, _DEVICES):
        for raw in _each(devices, _DEVICE_IDS):
            found = _PLUGIN_ID.fullmatch(_text(raw))
            if found:
                share = found["share"] or found["vgpu"]
                yield found["gpu"] or found["node"], None if share is None else int(share)
    for dynamic in _each(container, _DYNAMIC_RESOURCES):
        for claimed in _each(dynamic, _CLAIM_RESOURCES):
            gpu = _claimed(claimed)
            if gpu:
                yield gpu, None


def _claimed(claimed: bytes) -> str:
    """Return the device of a claim: its UUID if any of its names contains one, else its name."""
    if next(iter(map(_text, _each(claimed, _DRIVER_NAME))), _DRA_DRIVER) != _DRA_DRIVER:
        return ""
    names = [_text(name) for name in _each(claimed, _DEVICE_NAME)]
    for cdi in _each(claimed, _CDI_DEVICES):
        # Fully qualified: vendor/class=device, where the device may begin with the claim's UID.
        names += [_text(name).rpartition("=")[2] for name in _each(cdi, _CDI_NAME)]
    for name in names:
        if uuid := _UUID_IN_TEXT.search(name):
            return uuid[0]
    return next((name for name in names if _DRA_DEVICE.fullmatch(name)), "")


def _name(message: bytes, number: int) -> str:
    """Return the last text of that field number if valid as a Kubernetes name, else nothing."""
    name = ""
    for raw in _each(message, number):
        name = _text(raw)
    return name if _SAFE_NAME.fullmatch(name) else ""


def _text(raw: bytes) -> str:
    return raw[: MAX_NAME + 1].decode("utf-8", "replace")


def _each(message: bytes, number: int) -> Iterator[bytes]:
    """Yield every length-delimited field of that number; all others are skipped."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(message, at)
            end = at + size
            if end > len(message):
                raise PodResourcesError("the kubelet's answer is cut off")
            if tag >> 3 == number:
                yield message[at:end]
            at = end
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise PodResourcesError("the kubelet's answer is no podresources message")
    if at > len(message):
        raise PodResourcesError("the kubelet's answer is cut off")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise PodResourcesError("the kubelet's answer is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise PodResourcesError("the kubelet's answer is no podresources message")
