"""Reads a web-config file once, with the files that it names, as far as it is understood."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from disagg_cluster.config.problems import Finding, YamlPath, config_error
from disagg_cluster.host.files.named_paths import read_bounded
from disagg_cluster.nodefile.draft import validated, without
from disagg_cluster.nodefile.messages import Violation
from disagg_cluster.nodefile.web.checks import check
from disagg_cluster.nodefile.web.shape import WebConfig
from disagg_cluster.nodefile.yaml_positions import read_yaml
from disagg_exporter.http.client.tls_client import server_certificate

FILE_KEYS = ("cert_file", "key_file", "client_ca_file")
_MAPPINGS: tuple[YamlPath, ...] = (("http_server_config", "headers"), ("basic_auth_users",))
MOST_BYTES = 1 << 20
"""The largest file accepted; a larger one must not fill the memory at each check."""

ReadBytes = Callable[[Path], bytes]


@dataclass(frozen=True, slots=True)
class WebFiles:
    """All bytes of a web config: two equal ones make the same server.

    `named` are the files that it names, by key; an error's text if one cannot be read.
    """

    path: Path
    text: bytes = field(repr=False)
    named: Mapping[str, bytes | str] = field(default_factory=dict, repr=False)


_read_bounded: ReadBytes = partial(read_bounded, most_bytes=MOST_BYTES)


def read(path: Path, get: ReadBytes = _read_bounded) -> WebFiles:
    """Read a web-config file and the files that it names.

    Raises:
        ConfigError: The file itself cannot be read.
    """
    try:
        text = get(path)
    except OSError as error:
        problem = Finding((), f"cannot be read: {error.strerror or error}")
        raise config_error([problem], str(path)) from error
    named: dict[str, bytes | str] = {}
    for key, name in _names(text).items():
        try:
            named[key] = get(path.parent / name)
        except (OSError, ValueError) as error:
            named[key] = getattr(error, "strerror", None) or str(error)
    return WebFiles(path, text, named)


def understand(files: WebFiles) -> tuple[WebConfig, list[Finding], Mapping[YamlPath, int]]:
    """Return what the files state, all problems with it, and the lines of its paths.

    With findings, the configuration holds what could be understood.
    """
    try:
        document = read_yaml(files.text.decode("utf-8"))
    except UnicodeDecodeError:
        return WebConfig(), [Finding((), "not text in UTF-8")], {}
    findings = list(document.findings)
    said = {} if document.value is None else document.value
    raw, config, found = validated(said, WebConfig, findings)
    doubts = {doubt for violation in found for doubt in violation.doubts}
    if config is None:
        rest = without(raw, {_smallest(violation) for violation in found})
        config = WebConfig.model_validate(rest if isinstance(rest, dict) else {})
    findings += check(config, lambda path: not any(d[: len(path)] == path for d in doubts))
    for key, content in files.named.items():
        if isinstance(content, str):
            findings.append(Finding(("tls_server_config", key), f"cannot be read: {content}"))
    return config, findings, document.lines


def _smallest(violation: Violation) -> YamlPath:
    """Return what to leave out so that the rest is understood: of a mapping, only one entry."""
    path = violation.finding.path
    return path if path[:-1] in _MAPPINGS else violation.leave_out


def _names(text: bytes) -> dict[str, str]:
    """Return the files that a web config names, as far as it can be understood."""
    value = read_yaml(text.decode("utf-8", errors="replace")).value
    tls = value.get("tls_server_config") if isinstance(value, dict) else None
    if not isinstance(tls, dict):
        return {}
    return {key: tls[key] for key in FILE_KEYS if isinstance(tls.get(key), str) and tls[key]}


def certificate(path: Path) -> bytes | None:
    """Return the server's own certificate, in PEM; None if it does not speak TLS.

    A file that its server could not use is understood as far as possible.

    Raises:
        ConfigError: The file or the certificate cannot be read.
    """
    files = read(path)
    config, _, lines = understand(files)
    tls = config.tls_server_config
    if tls is None:
        return None
    pem = files.named.get("cert_file", (tls.cert or "").encode())
    own = server_certificate(pem) if isinstance(pem, bytes) else None
    if own is None:
        why = f"cannot be read: {pem}" if isinstance(pem, str) else "no certificate in PEM"
        raise config_error([Finding(("tls_server_config", "cert_file"), why)], str(path), lines)
    return ssl.DER_cert_to_PEM_cert(own).encode()
