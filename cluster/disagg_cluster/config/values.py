"""Value types of a node file (addresses, ports, GPUs, names, prices), and its base section.

Each rejects other values with a `ValueError`; the field that uses it describes what is expected.
"""

from __future__ import annotations

import ipaddress
import os
import re
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.http.listen import ListenError, parse_listen
from disagg_exporter.model import Role

ENGINE_ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED, Role.ENCODE)
"""The roles that a file may give to a worker; the other roles are only detected."""

FOLDER = "folder"
"""The key of a validation's context that holds the folder to which paths are relative."""

MOST_GPUS = 1024
"""No node has more; a typing error must not make us count to a billion."""

# Underscores are invalid in host names, and yet some name servers have them.
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PAGE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def _address_text(text: str) -> str:
    try:
        host = parse_listen(text).host
    except ListenError as error:
        raise ValueError(str(error)) from error
    if host or "[" in text:
        _check_host(host, bracketed="[" in text)
    return text


def _check_host(host: str, *, bracketed: bool) -> None:
    if bracketed:
        ipaddress.IPv6Address(host)
    elif re.fullmatch(r"[0-9.]+", host):
        ipaddress.IPv4Address(host)
    elif len(host) > 253 or not all(map(_LABEL.fullmatch, host.removesuffix(".").split("."))):
        raise ValueError(f"{host!r} is no name of a host")


def _gpus(value: object) -> object:
    """Reject here what a union of types would report twice."""
    if isinstance(value, list):
        if not all(_is_count(item) or _is_uuid(item) for item in value):
            raise ValueError("neither an index nor a UUID")
        return tuple(value)
    if not _is_count(value):
        raise ValueError("neither a count nor a list")
    return value


def _gpu_list(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return _gpus(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_GPUS


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9/_.-]*", value) is not None


def _engine_role(value: object) -> object:
    return next((role for role in ENGINE_ROLES if role.value == value), value)


def _host_address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


def _root_of(text: str, *schemes: str) -> str:
    expected = "an address such as http://10.0.0.7:8100"
    bare = text.rstrip("/")
    try:
        parts = urlsplit(bare)
        sound = parts.scheme in schemes and bool(parts.hostname) and bool(parts.port)
        _check_host(parts.hostname or "", bracketed="[" in parts.netloc)
    except ValueError as error:
        raise ValueError(expected) from error
    if not sound or "@" in parts.netloc or bare != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(expected)
    return bare


def _page_url(text: str) -> str:
    """Return a page's address for a browser: behind a proxy it has no port, and often a path."""
    bare = text.rstrip("/")
    parts = urlsplit(bare)
    _check_host(parts.hostname or "", bracketed="[" in parts.netloc)
    rooted = bare == f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme not in ("http", "https") or parts.port == 0 or "@" in parts.netloc:
        raise ValueError("no address of a page")
    if not rooted or not _PAGE_PATH.fullmatch(parts.path):
        raise ValueError("no address of a page")
    return bare


def _hook_url(text: str) -> str:
    parts = urlsplit(text)
    sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    if not sound or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("no address of a web server")
    return text


@lru_cache(maxsize=256)  # called at every check of an engine
def reachable(host: str) -> str:
    """Return the address at which a server that listens on `host` answers on its own node."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def root_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the root URL of a server that listens on `host`, as seen from its own node."""
    near, scheme = reachable(host), "https" if tls else "http"
    return f"{scheme}://[{near}]:{port}" if ":" in near else f"{scheme}://{near}:{port}"


def _expand(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - a hub name must not become a Path


def _placed(text: str, info: ValidationInfo) -> str:
    """Return a path valid from anywhere: a relative one starts from the folder of its file."""
    folder = (info.context or {}).get(FOLDER)
    return text if folder is None else os.path.abspath(os.path.join(folder, text))  # noqa: PTH100, PTH118


def _placed_program(text: str, info: ValidationInfo) -> str:
    # A name without a slash is searched on the PATH.
    return _placed(text, info) if "/" in text else text


def _placed_command(argv: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    return (_placed_program(_expand(argv[0]), info), *argv[1:])


def _placed_model(text: str, info: ValidationInfo) -> str:
    return _placed(text, info) if is_model_path(text) else text


def is_model_path(model: str) -> bool:
    """Whether a model is given by its folder rather than by its name on the hub."""
    return model.startswith(("/", ".", "~"))


Text = Annotated[str, Field(pattern=r"^[^\x00]+$")]
AnyText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
PathText = Annotated[Text, AfterValidator(_expand), AfterValidator(_placed)]
ProgramText = Annotated[Text, AfterValidator(_expand), AfterValidator(_placed_program)]
CommandWords = Annotated[
    tuple[Text, ...], Field(min_length=1, strict=False), AfterValidator(_placed_command)
]
ModelText = Annotated[Text, AfterValidator(_expand), AfterValidator(_placed_model)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False, description="seconds, a number above 0")
]
Amount = Annotated[
    float, Field(ge=0, allow_inf_nan=False, description="seconds, a number from 0 up")
]
Count = Annotated[int, Field(ge=1)]
HostAddress = Annotated[str, AfterValidator(_host_address)]
_HTTP_URL = WithJsonSchema({"type": "string", "pattern": "^https?://"})
RootUrl = Annotated[str, AfterValidator(lambda text: _root_of(text, "http")), _HTTP_URL]
EngineUrl = Annotated[str, AfterValidator(lambda text: _root_of(text, "http", "https")), _HTTP_URL]
PageUrl = Annotated[str, AfterValidator(_page_url), _HTTP_URL]
HookUrl = Annotated[str, AfterValidator(_hook_url), _HTTP_URL]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AddressText = Annotated[str, AfterValidator(_address_text)]
Gpus = Annotated[int | tuple[int | str, ...], BeforeValidator(_gpus)]
GpuList = Annotated[tuple[int | str, ...], BeforeValidator(_gpu_list)]
EngineRole = Annotated[
    Literal[Role.PREFILL, Role.DECODE, Role.MIXED, Role.ENCODE], BeforeValidator(_engine_role)
]
Devices = Annotated[DeviceKind, Field(strict=False)]


class Section(BaseModel):
    """A mapping of the node file; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
