"""The HTTP config file that promtool reads: credentials and trusted authorities for a server.

The keys are those of `promtool --http.config.file`, as far as needed; a scrape job has the same
(https://prometheus.io/docs/prometheus/latest/configuration/promtool). Paths are relative to the
file's own folder.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.config.values import AnyText, Section
from disagg_cluster.host.files.named_paths import read_bounded
from disagg_cluster.nodefile.draft import validated
from disagg_cluster.nodefile.yaml_positions import MOST_BYTES, read_yaml_file
from disagg_cluster.prometheus.credentials import Credentials, TlsFiles


class BasicAuth(Section):
    """A name and its password."""

    username: AnyText = Field(description="a name")
    password: AnyText | None = Field(default=None, description="a password, text")
    password_file: AnyText | None = Field(default=None, description="the path of a password")


class Authorization(Section):
    """Other credentials for an Authorization header."""

    type: AnyText = Field(default="Bearer", description="the kind of credentials, such as Bearer")
    credentials: AnyText | None = Field(default=None, description="credentials, text")
    credentials_file: AnyText | None = Field(default=None, description="the path of credentials")


class TlsClient(Section):
    """Trusted authorities, and our own certificate."""

    ca_file: AnyText | None = Field(default=None, description="the path of certificates")
    cert_file: AnyText | None = Field(default=None, description="the path of a certificate chain")
    key_file: AnyText | None = Field(default=None, description="the path of a private key")
    server_name: AnyText | None = Field(default=None, description="the name in a certificate")
    insecure_skip_verify: bool = Field(default=False, description="true or false")


class HttpConfig(Section):
    """A whole HTTP config file."""

    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: TlsClient = TlsClient()


def load(path: Path) -> Credentials:
    """Read an HTTP config file; the files that it names are relative to it.

    Raises:
        ConfigError: It cannot be used; all its problems are in the error.
    """
    marked = read_yaml_file(path)
    findings = list(marked.findings)
    _, config, _ = validated({} if marked.value is None else marked.value, HttpConfig, findings)
    config = config or HttpConfig()
    shown = list(_shown(config, path.parent, findings))
    if len(shown) > 1:
        findings.append(Finding(("authorization",), "given twice, here and in basic_auth"))
    if not _may_be_a_name(config.tls_config.server_name or "localhost"):
        findings.append(Finding(("tls_config", "server_name"), "no certificate has such a name"))
    if findings:
        raise config_error(findings, str(path), marked.lines)
    tls = TlsFiles(**config.tls_config.model_dump())
    return Credentials("".join(shown), tls, path)


def _may_be_a_name(text: str) -> bool:
    """Return whether TLS accepts it as the name of a server."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def _shown(config: HttpConfig, folder: Path, findings: list[Finding]) -> Iterator[str]:
    if (basic := config.basic_auth) is not None:
        word = _secret(basic, "basic_auth", "password", folder, findings)
        if ":" in basic.username:
            findings.append(Finding(("basic_auth", "username"), "a name cannot hold a colon"))
        yield f"Basic {base64.b64encode(f'{basic.username}:{word}'.encode()).decode()}"
    if (other := config.authorization) is not None:
        word = _secret(other, "authorization", "credentials", folder, findings)
        text = f"{other.type} {word}"
        if not (text.isascii() and text.isprintable()):
            findings.append(Finding(("authorization",), "expected printable ASCII on one line"))
        yield text


def _secret(section: Section, name: str, key: str, folder: Path, findings: list[Finding]) -> str:
    """Return a secret given in the file or in a separate one, without surrounding blanks."""
    inline: str | None = getattr(section, key)
    path: str | None = getattr(section, f"{key}_file")
    if (inline is None) == (path is None):
        both = f"given twice, here and in {key}_file" if path else f"missing: it or {key}_file"
        findings.append(Finding((name, key), both))
    if path is None:
        return inline or ""
    try:
        return read_bounded(folder / path, MOST_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text in UTF-8"
        findings.append(Finding((name, f"{key}_file"), f"cannot be read: {why}"))
        return ""
