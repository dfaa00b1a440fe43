"""The option of all commands that ask a server who may want to know who asks."""

from __future__ import annotations

from pathlib import Path

import click

http_config_option = click.option(
    "--http-config",
    "http_config",
    type=click.Path(path_type=Path),
    envvar="DISAGG_NODE_HTTP_CONFIG",
    show_envvar=True,
    help="A file with `tls_config`, `basic_auth` or `authorization`, as promtool takes it.",
)
