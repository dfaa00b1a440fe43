"""Selects the engine to probe: by address, or as a worker of this node's daemon."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disagg_cluster.cli.control import (
    run_dir_option,
    socket_of,
    worker_names,
)
from disagg_cluster.cli.daemon_page import http_config_option
from disagg_cluster.cli.prometheus_access import access_of
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.config import Worker
    from disagg_cluster.control.views import WorkerView
    from disagg_cluster.tune.completion_server import CompletionServer

_EXAMPLE = "http://127.0.0.1:8000"
_WAY_OUT = (
    "--engine takes the address of an engine that serves, or the name of a worker of the daemon "
    "here (disagg-node status lists them)"
)
_PATIENCE_SECONDS = 10.0


class NoSuchWorkerError(DisaggError):
    """No worker of this name can be probed; the message lists those that can."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The engine selected by the options."""

    engine: str
    model: str | None
    headers: Sequence[str]
    http_config: Path | None
    file: Path | None
    run_dir: Path | None
    live: bool

    @property
    def is_worker(self) -> bool:
        """Whether a worker's name was given, not an address."""
        return "/" not in self.engine and ":" not in self.engine

    def server(self) -> tuple[CompletionServer, int | None]:
        """The engine, and the most tokens of a request, if it reports that.

        Raises:
            UsageError: Conflicting options.
            NoSuchWorkerError: There is no such worker, or it is not serving.
            EngineRefusalError: It has no OpenAI API, serves another model, or denies access.
            EngineDownError: Nothing answers.
            NoDaemonError: There is no daemon that knows the worker.
        """
        from disagg_cluster.prometheus.http_session import HttpSession
        from disagg_cluster.tune.completion_server import CompletionServer, EngineDownError

        found = self._worker() if self.is_worker else None
        url = self.engine if found is None else found.url
        headers = [*self.headers]
        if found is not None and found.key and not any(_is_authorization(h) for h in headers):
            headers.append(f"Authorization:Bearer {found.key}")
        access = access_of(url, headers, self.http_config, "--engine", _EXAMPLE)
        session = HttpSession(access.headers, access.tls, is_api=True)
        server = CompletionServer(access.url.removesuffix("/").removesuffix("/v1"), session)
        model = self.model or (found.model_name if found else None)
        try:
            return server, _select_model(server, model)
        except EngineDownError as error:
            session.close()
            raise EngineDownError(f"{error}: {_WAY_OUT}") from error
        except BaseException:
            session.close()
            raise

    def _worker(self) -> _FoundWorker:
        import difflib

        from disagg_cluster.control.client import ask, new_request
        from disagg_cluster.control.messages import DaemonStatus
        from disagg_cluster.nodefile import load

        configured = None
        if self.file is not None:
            workers = {worker.name: worker for worker in load(self.file).workers}
            configured = workers.get(self.engine)
        replies = ask(
            socket_of(self.file, self.run_dir), new_request(DaemonStatus()), _PATIENCE_SECONDS
        )
        views = {reply.worker.worker: reply.worker for reply in replies if reply.worker}
        view = views.get(self.engine)
        if view is None:
            close = difflib.get_close_matches(self.engine, views, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            there = ", ".join(sorted(views)) or "none"
            raise NoSuchWorkerError(
                f"the daemon has no worker {self.engine!r}: {meant}its workers are {there}; an "
                f"engine elsewhere is given by its address, such as {_EXAMPLE}"
            )
        return _found(view, configured)


@dataclass(frozen=True, slots=True)
class _FoundWorker:
    url: str
    model_name: str | None
    key: str = ""


def _found(view: WorkerView, configured: Worker | None) -> _FoundWorker:
    from disagg_cluster.config.values import root_url
    from disagg_cluster.launch.worker_specs import api_key
    from disagg_cluster.lifecycle.state import WorkerState
    from disagg_cluster.tune.completion_server import NotAnEngineError

    if view.role == "router":
        raise NotAnEngineError(f"{view.worker} is the router: probe one of the engines behind it")
    if view.state is not WorkerState.READY:
        raise NoSuchWorkerError(
            f"{view.worker} is {view.state.value}, and only one that is ready can be probed: "
            "disagg-node status shows how it stands"
        )
    if configured is None:
        return _FoundWorker(root_url(view.host, view.port, tls=False), None)
    return _FoundWorker(configured.url, configured.model_name, api_key(configured, os.environ))


def _select_model(server: CompletionServer, wanted: str | None) -> int | None:
    """Select the model to request; returns the most tokens of a request, if reported."""
    from disagg_cluster.tune.completion_server import NotAnEngineError

    models = server.models()
    if wanted is None and len(models) > 1:
        raise click.UsageError(f"{server.url} serves {', '.join(models)}: say which with --model")
    if not models:
        raise NotAnEngineError(f"{server.url} serves no model")
    server.model = wanted or next(iter(models))
    if server.model not in models:
        raise NoSuchWorkerError(
            f"{server.url} does not serve {server.model!r}: it serves {', '.join(models)}"
        )
    return models[server.model]


def _is_authorization(header: str) -> bool:
    return header.partition(":")[0].strip().lower() == "authorization"


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select an engine, passed as `target`."""

    @functools.wraps(command)
    def gathered(
        engine: str,
        model: str | None,
        headers: Sequence[str],
        http_config: Path | None,
        file: Path | None,
        run_dir: Path | None,
        *,
        live: bool,
        **others: Any,
    ) -> Any:
        target = TargetOptions(engine, model, headers, http_config, file, run_dir, live)
        if file is not None and run_dir is not None:
            raise click.UsageError("say either --config or --run-dir")
        return command(target=target, **others)

    options = (
        click.option(
            "--live", is_flag=True, help="Probe it while it serves users, which slows them down."
        ),
        run_dir_option,
        click.option(
            "-c",
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help="The daemon's node file: its run folder, and how to reach its worker.",
        ),
        http_config_option,
        click.option(
            "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Sent to the engine."
        ),
        click.option("--model", help="The model to request.  [default: the one it serves]"),
        click.option(
            "--engine",
            required=True,
            metavar="URL|WORKER",
            shell_complete=worker_names,
            help=f"The address of an engine, such as {_EXAMPLE}, or a worker of the daemon here.",
        ),
    )
    wrapped: Callable[..., Any] = gathered
    for option in options:
        wrapped = option(wrapped)
    return wrapped
