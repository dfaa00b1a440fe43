"""How commands locate the daemon's page, and the credentials for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.config import NodeConfig
    from disagg_cluster.daemon.endpoint_file import DaemonEndpoint
    from disagg_cluster.inspect.phase_table import NodeShares
    from disagg_cluster.inspect.views import NodePage
    from disagg_cluster.prometheus.credentials import Credentials
    from disagg_cluster.prometheus.http_client import Target

http_config_option = click.option(
    "--http-config",
    "http_config",
    type=click.Path(path_type=Path),
    envvar="DISAGG_NODE_HTTP_CONFIG",
    show_envvar=True,
    help="A file with `tls_config`, `basic_auth` or `authorization`, in promtool's format.",
)


DEFAULT_URL = "http://127.0.0.1:9847"
_DEADLINE_SECONDS = 5.0
_MOST_FILE_BYTES = 65_536


class UnusablePageError(DisaggError):
    """Another program answers at the daemon's address, or it denies access."""

    exit_code = 2


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options `--url`, `--config` and `--http-config`."""
    for option in (
        http_config_option,
        click.option(
            "-c",
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help="The node file: it gives the daemon's address or, without a daemon, where to look "
            "for engines (`attach`).",
        ),
        click.option(
            "--url",
            help=f"The daemon's address.  [default: that of this node, or {DEFAULT_URL}]",
        ),
    ):
        command = option(command)
    return command


def target_of(
    url: str | None, file: Path | None, http_config: Path | None, run_dir: Path | None = None
) -> Target:
    """The address of the daemon's page and how to fetch it; `run_dir` is its run folder, if given.

    Raises:
        UsageError: Not an address.
        ConfigError: The node file or the HTTP config file cannot be used.
        UnusablePageError: The daemon's web-config file cannot be read.
    """
    from disagg_cluster.prometheus.credentials import Credentials
    from disagg_cluster.prometheus.http_client import Target

    credentials = Credentials() if http_config is None else _credentials(http_config)
    endpoint = None if file is None or run_dir else _endpoint_by_run_dir(file)
    if endpoint is None:
        endpoint = _endpoint(None if file is None else _loaded(file), run_dir)
    if url is None:
        if endpoint is None:
            return Target(DEFAULT_URL, credentials)
        return replace(_own_target(endpoint), credentials=credentials)
    target = Target(_root(url), credentials)
    if endpoint is not None and _is_own_url(target.url, endpoint):
        # The user of --url may lack access to the daemon's files.
        with contextlib.suppress(UnusablePageError):
            own = _own_target(endpoint)
            return replace(target, pinned=own.pinned, pinned_by=own.pinned_by)
    return target


def _credentials(http_config: Path) -> Credentials:
    # Importing this takes 0.1 s, needed only with such a file.
    from disagg_cluster.prometheus import http_config_file

    return http_config_file.load(http_config)


def read_page(target: Target, *, named: bool) -> NodePage | None:
    """The page of a daemon; None if nothing answers at the default address.

    Args:
        target: Where to fetch it.
        named: Whether the user gave the address; then it must answer.

    Raises:
        UnusablePageError: Something answers, but not with our page.
        NoDaemonError: Nothing answers at the address the user gave.
    """
    from disagg_cluster.inspect.page_view import NotOurPageError, read_node_page
    from disagg_cluster.prometheus.http_client import RefusedError, UnansweredError, fetch

    try:
        return read_node_page(fetch(target, "/metrics", _DEADLINE_SECONDS))
    except RefusedError as error:
        raise UnusablePageError(f"cannot look: {error}") from None
    except NotOurPageError as error:
        hint = "another program answers; --url says where yours is"
        raise UnusablePageError(f"cannot look: {target.url}: {error} ({hint})") from None
    except UnansweredError as error:
        if named:
            from disagg_cluster.control.client import NoDaemonError

            raise NoDaemonError(
                f"no daemon answers: {error}\n    --url says where one is; without it this node is "
                "looked at, with or without a daemon"
            ) from None
        return None


def run_folder_of(file: Path | None) -> Path | None:
    """The run folder of this node's daemon, from the node file or a running daemon's endpoint file.

    Raises:
        ConfigError: The node file cannot be used.
    """
    from disagg_cluster.daemon import endpoint_file
    from disagg_cluster.host.run_dir.layout import possible_run_dirs
    from disagg_cluster.nodefile import load

    configured = None if file is None else load(file).run_folder
    folders = [configured] if configured else possible_run_dirs(os.environ, os.getuid())
    live = (each for each in folders if endpoint_file.read_endpoint(RunFolder(each).whereabouts))
    return next(live, None)


def read_committed(target: Target) -> NodeShares:
    """A daemon's committed shares of the last minute; empty for an older one without them."""
    from disagg_cluster.inspect.phase_table import NodeShares, read_shares

    view = read_view(target)
    return read_shares(view) if view else NodeShares()


def read_view(target: Target) -> bytes:
    """The daemon's HTML page as JSON; empty for an older daemon without it."""
    from disagg_cluster.prometheus.http_client import RefusedError, UnansweredError, fetch

    try:
        return fetch(target, "/view.json", _DEADLINE_SECONDS)
    except (RefusedError, UnansweredError):
        return b""


def _loaded(file: Path) -> NodeConfig:
    from disagg_cluster.nodefile import load

    return load(file)


def _endpoint_by_run_dir(file: Path) -> DaemonEndpoint | None:
    """The endpoint of a running daemon, using only the `run_dir` of its node file.

    Parsing the whole file takes 0.2 s, needed only if the daemon is not found this way.
    """
    import yaml

    from disagg_cluster.host.files.named_paths import read_bounded

    try:
        # Composed, not constructed, so that nested anchors in a short file cannot expand.
        text = read_bounded(file, _MOST_FILE_BYTES).decode("utf-8")
        root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(root, yaml.MappingNode) or any(key.value == "<<" for key, _ in root.value):
        return None
    values = [value for key, value in root.value if key.value == "run_dir"]
    if not values:
        return _endpoint_in(None)
    folder = Path(values[0].value) if isinstance(values[0], yaml.ScalarNode) else Path()
    return _endpoint_in(folder) if len(values) == 1 and folder.is_absolute() else None


def _endpoint(config: NodeConfig | None, run_dir: Path | None) -> DaemonEndpoint | None:
    """The endpoint of this node's running daemon, or else the one in the node file."""
    from disagg_cluster.daemon import endpoint_file

    found = _endpoint_in(run_dir or (config.run_folder if config else None))
    return endpoint_file.of_file(config.listen) if found is None and config else found


def _endpoint_in(run_dir: Path | None) -> DaemonEndpoint | None:
    """The endpoint of a running daemon in this run folder, or in one of the default ones."""
    from disagg_cluster.daemon import endpoint_file
    from disagg_cluster.host.run_dir.layout import possible_run_dirs

    # Our own and that of a service: a root user may have a session with its own folder.
    folders = [run_dir] if run_dir else possible_run_dirs(os.environ, os.getuid())
    left = (endpoint_file.read_endpoint(RunFolder(folder).whereabouts) for folder in folders)
    return next(filter(None, left), None)


def _own_target(endpoint: DaemonEndpoint) -> Target:
    from disagg_cluster.daemon.endpoint_file import near_url
    from disagg_cluster.prometheus.http_client import Target

    if endpoint.web_config is None:
        return Target(near_url(endpoint.address))
    # Imported only with such a file.
    from disagg_cluster.config.problems import ConfigError
    from disagg_cluster.nodefile.web.reading import certificate

    try:
        pinned = certificate(endpoint.web_config)
    except ConfigError as error:
        url = near_url(endpoint.address, "https")
        raise UnusablePageError(
            f"cannot look: {error}\n    without it say --url {url} and --http-config FILE"
        ) from None
    if pinned is None:
        return Target(near_url(endpoint.address))
    return Target(
        near_url(endpoint.address, "https"), pinned=pinned, pinned_by=str(endpoint.web_config)
    )


def _is_own_url(url: str, endpoint: DaemonEndpoint) -> bool:
    """Whether an HTTPS address is that of this node's daemon."""
    from disagg_cluster.discovery.finders.own_addresses import is_own_address

    parts = urlsplit(url)
    same = parts.scheme == "https" and parts.port == endpoint.address.port
    return same and endpoint.web_config is not None and is_own_address(parts.hostname or "")


def _root(text: str) -> str:
    """The root URL of a daemon's server from user input; also from its metrics page's URL."""
    from disagg_cluster.prometheus.http_client import is_address

    if not is_address(text) or "@" in urlsplit(text).netloc or not text.isascii():
        raise click.UsageError(
            f"{text!r} is no address of a daemon: give one such as {DEFAULT_URL}"
        )
    return text.rstrip("/").removesuffix("/metrics").rstrip("/")
