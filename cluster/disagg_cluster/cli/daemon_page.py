"""How `phases` and `doctor` find the daemon that they ask, and the credentials for its page."""

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
    help="A file with `tls_config`, `basic_auth` or `authorization`, as promtool takes it.",
)


DEFAULT_URL = "http://127.0.0.1:9847"
_DEADLINE_SECONDS = 5.0
_MOST_FILE_BYTES = 65_536


class CannotLookError(DisaggError):
    """What answers where the daemon should be is something else, or does not let us in."""

    exit_code = 2


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options `--url`, `--config` and `--http-config`."""
    for option in (
        http_config_option,
        click.option(
            "-c",
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help="The node file: where its daemon answers, and without a daemon where `attach` "
            "says to look.",
        ),
        click.option(
            "--url",
            help=f"Where the daemon answers.  [default: that of this node, or {DEFAULT_URL}]",
        ),
    ):
        command = option(command)
    return command


def target_of(
    url: str | None, file: Path | None, http_config: Path | None, run_dir: Path | None = None
) -> Target:
    """Where to ask for the daemon's page, and how; `run_dir` is its run folder if that is said.

    Raises:
        UsageError: The address is none.
        ConfigError: The node file or the HTTP config file cannot be used.
        CannotLookError: The daemon's web-config file cannot be read.
    """
    from disagg_cluster.prometheus.credentials import Credentials
    from disagg_cluster.prometheus.http_client import Target

    credentials = Credentials() if http_config is None else _credentials(http_config)
    endpoint = None if file is None or run_dir else _left_plainly(file)
    if endpoint is None:
        endpoint = _endpoint(None if file is None else _loaded(file), run_dir)
    if url is None:
        if endpoint is None:
            return Target(DEFAULT_URL, credentials)
        return replace(_own_target(endpoint), credentials=credentials)
    target = Target(_root(url), credentials)
    if endpoint is not None and _leads_to(target.url, endpoint):
        # Who says where to ask need not be allowed to read the daemon's files.
        with contextlib.suppress(CannotLookError):
            own = _own_target(endpoint)
            return replace(target, pinned=own.pinned, pinned_by=own.pinned_by)
    return target


def _credentials(http_config: Path) -> Credentials:
    # Takes 0.1 s, which only those pay who name such a file.
    from disagg_cluster.prometheus import http_config_file

    return http_config_file.load(http_config)


def read_page(target: Target, *, named: bool) -> NodePage | None:
    """The page of a daemon; None if nobody answers where this node's should be.

    Args:
        target: Where to ask.
        named: Whether somebody has said where: then only that daemon is meant.

    Raises:
        CannotLookError: Somebody answers there, and not with a page of ours.
        NoDaemonError: Nobody answers where somebody has said that a daemon does.
    """
    from disagg_cluster.inspect.page_view import NotOurPageError, read_node_page
    from disagg_cluster.prometheus.http_client import RefusedError, UnansweredError, fetch

    try:
        return read_node_page(fetch(target, "/metrics", _DEADLINE_SECONDS))
    except RefusedError as error:
        raise CannotLookError(f"cannot look: {error}") from None
    except NotOurPageError as error:
        hint = "another program answers; --url says where yours is"
        raise CannotLookError(f"cannot look: {target.url}: {error} ({hint})") from None
    except UnansweredError as error:
        if named:
            from disagg_cluster.control.client import NoDaemonError

            raise NoDaemonError(
                f"no daemon answers: {error}\n    --url says where one is; without it this node is "
                "looked at, with or without a daemon"
            ) from None
        return None


def run_folder_of(file: Path | None) -> Path | None:
    """The run folder of this node's daemon, by its node file or where one has left word of itself.

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


def read_booked(target: Target) -> NodeShares:
    """What a daemon has booked in the last minute; nothing of one that is older than that page."""
    from disagg_cluster.inspect.phase_table import NodeShares, read_shares

    view = read_view(target)
    return read_shares(view) if view else NodeShares()


def read_view(target: Target) -> bytes:
    """The page for people of a daemon as JSON; empty of one that has none yet."""
    from disagg_cluster.prometheus.http_client import RefusedError, UnansweredError, fetch

    try:
        return fetch(target, "/view.json", _DEADLINE_SECONDS)
    except (RefusedError, UnansweredError):
        return b""


def _loaded(file: Path) -> NodeConfig:
    from disagg_cluster.nodefile import load

    return load(file)


def _left_plainly(file: Path) -> DaemonEndpoint | None:
    """What a living daemon has left where a node file plainly says.

    Understanding all of the file takes 0.2 s, which is for those whose daemon is not found so.
    """
    import yaml

    from disagg_cluster.host.files.named_paths import read_bounded

    try:
        # Composed, not constructed: anchors then make nothing of ten lines.
        text = read_bounded(file, _MOST_FILE_BYTES).decode("utf-8")
        root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(root, yaml.MappingNode) or any(key.value == "<<" for key, _ in root.value):
        return None
    told = [value for key, value in root.value if key.value == "run_dir"]
    if not told:
        return _left(None)
    folder = Path(told[0].value) if isinstance(told[0], yaml.ScalarNode) else Path()
    return _left(folder) if len(told) == 1 and folder.is_absolute() else None


def _endpoint(config: NodeConfig | None, run_dir: Path | None) -> DaemonEndpoint | None:
    """What the daemon of this node has left, else what its file says."""
    from disagg_cluster.daemon import endpoint_file

    found = _left(run_dir or (config.run_folder if config else None))
    return endpoint_file.of_file(config.listen) if found is None and config else found


def _left(run_dir: Path | None) -> DaemonEndpoint | None:
    """What a living daemon has left in a run folder, or in one of those that are usual."""
    from disagg_cluster.daemon import endpoint_file
    from disagg_cluster.host.run_dir.layout import possible_run_dirs

    # Ours and that of a service: a person who is root may have a session with a folder.
    folders = [run_dir] if run_dir else possible_run_dirs(os.environ, os.getuid())
    left = (endpoint_file.read_endpoint(RunFolder(folder).whereabouts) for folder in folders)
    return next(filter(None, left), None)


def _own_target(endpoint: DaemonEndpoint) -> Target:
    from disagg_cluster.daemon.endpoint_file import near_url
    from disagg_cluster.prometheus.http_client import Target

    if endpoint.web_config is None:
        return Target(near_url(endpoint.address))
    # A node without such a file does without all that understands it.
    from disagg_cluster.config.problems import ConfigError
    from disagg_cluster.nodefile.web.reading import certificate

    try:
        pinned = certificate(endpoint.web_config)
    except ConfigError as error:
        url = near_url(endpoint.address, "https")
        raise CannotLookError(
            f"cannot look: {error}\n    without it say --url {url} and --http-config FILE"
        ) from None
    if pinned is None:
        return Target(near_url(endpoint.address))
    return Target(
        near_url(endpoint.address, "https"), pinned=pinned, pinned_by=str(endpoint.web_config)
    )


def _leads_to(url: str, endpoint: DaemonEndpoint) -> bool:
    """Whether an encrypted address is that of the daemon of this node."""
    from disagg_cluster.discovery.finders.declared import is_own_address

    parts = urlsplit(url)
    same = parts.scheme == "https" and parts.port == endpoint.address.port
    return same and endpoint.web_config is not None and is_own_address(parts.hostname or "")


def _root(text: str) -> str:
    """The root of a daemon's server, as a person wrote it; its metrics page means the same."""
    from disagg_cluster.prometheus.http_client import is_address

    if not is_address(text) or "@" in urlsplit(text).netloc or not text.isascii():
        raise click.UsageError(
            f"{text!r} is no address of a daemon: give one such as {DEFAULT_URL}"
        )
    return text.rstrip("/").removesuffix("/metrics").rstrip("/")
