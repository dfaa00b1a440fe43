"""The kinds of values that a node file holds: addresses, ports, GPUs, names.

Each refuses what it is not with a `ValueError`; the field that uses it says what was expected.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from disagg_exporter.devices import DeviceKind
from disagg_exporter.listen import ListenError, parse_listen
from disagg_exporter.model import Role

ENGINE_ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED, Role.ENCODE)
"""What a worker can be for; the other roles are not given but found."""

MOST_GPUS = 1024
"""No node has more; a slip of the finger must not make us count to a billion."""


def _address_text(text: str) -> str:
    try:
        host = parse_listen(text).host
    except ListenError as error:
        raise ValueError(str(error)) from error
    if ":" in host or "[" in text:
        ipaddress.IPv6Address(host)
    elif re.fullmatch(r"[0-9.]+", host):
        ipaddress.IPv4Address(host)
    elif host and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise ValueError(f"{host!r} is no name of a host")
    return text


def _gpus(value: object) -> object:
    """Refuse here what a union of types would refuse twice."""
    if isinstance(value, list):
        if not all(_is_count(item) or _is_uuid(item) for item in value):
            raise ValueError("neither an index nor a UUID")
        return tuple(value)
    if not _is_count(value):
        raise ValueError("neither a count nor a list")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_GPUS


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9/_.-]*", value) is not None


def _engine_role(value: object) -> object:
    return next((role for role in ENGINE_ROLES if role.value == value), value)


def _device_kind(value: object) -> object:
    return next((kind for kind in DeviceKind if kind.value == value), value)


def _expand(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - a hub name must not become a Path


Text = Annotated[str, Field(pattern=r"^[^\x00]+$")]
AnyText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
PathText = Annotated[Text, AfterValidator(_expand)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AddressText = Annotated[str, AfterValidator(_address_text)]
Gpus = Annotated[int | tuple[int | str, ...], BeforeValidator(_gpus)]
EngineRole = Annotated[
    Literal[Role.PREFILL, Role.DECODE, Role.MIXED, Role.ENCODE], BeforeValidator(_engine_role)
]
Devices = Annotated[DeviceKind, BeforeValidator(_device_kind)]
