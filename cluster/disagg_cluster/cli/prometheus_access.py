"""How commands reach a Prometheus: address, headers and TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    import ssl

DEFAULT_URL = "http://127.0.0.1:9090"

rules_server_option = click.option(
    "--prometheus",
    "url",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="A Prometheus with our rules, or a server with its API.",
)

header_option = click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Sent to Prometheus."
)


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """The root URL of a server, the headers to send, and the TLS settings."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None


def access_of(
    url: str,
    headers: Sequence[str],
    http_config: Path | None,
    option: str = "--prometheus",
    example: str = DEFAULT_URL,
) -> PrometheusAccess:
    """Combine `--prometheus` (or another option), `--header` and `--http-config`.

    Raises:
        UsageError: The address or a header is malformed.
        ConfigError: The HTTP config file cannot be used.
    """
    from disagg_cluster.prometheus import http_config_file
    from disagg_cluster.prometheus.http_client import is_address

    if not is_address(url):
        raise click.UsageError(f"{url!r} is no address: give one such as {example}")
    if "@" in urlsplit(url).netloc:
        raise click.UsageError(f"{option}: name and password belong in the --http-config file")
    sent = dict(map(_header, headers))
    tls = None
    if http_config is not None:
        key = http_config_file.load(http_config)
        if key.tls.server_name:
            raise click.UsageError(f"{option} gives the name to expect here, not `server_name:`")
        if key.authorization:
            sent["Authorization"] = key.authorization
        tls = key.context() if url.startswith("https:") else None
    return PrometheusAccess(url, sent, tls)


@contextlib.contextmanager
def named_prometheus() -> Iterator[None]:
    """Name the option to use when a Prometheus does not answer."""
    from disagg_cluster.prometheus.prometheus_api import NoAnswerError

    try:
        yield
    except NoAnswerError as error:
        raise NoAnswerError(f"{error}; --prometheus says where it is") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        # Not repeated in the message: it may be a secret.
        raise click.UsageError("--header: what was given is no header: give NAME:VALUE")
    return name.strip(), value.strip()
