"""Every command's whole output, plain and in colour, as tests/data/outputs has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import click
import pytest

from disagg_cluster.cli.main import LazyGroup, main
from disagg_cluster.control.messages import RereadReport
from disagg_cluster.control.views import WorkerView
from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.lifecycle.state import WorkerState
from support.children import free_port
from support.controlled_node import controlled_node
from support.daemon_answers import READY, STARTING, VIEW
from support.http_serving import serving
from support.transcripts import Transcript

DATA = Path(__file__).parents[3] / "data"


def leaves(group: LazyGroup = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that is no group."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from leaves(command, (*before, name))
        else:
            yield (*before, name)


def test_the_output_for_an_unknown_option_is_as_recorded() -> None:
    transcript = Transcript()
    for words in leaves():
        transcript.run(*words, "--nonsense")
    transcript.check("unknown-option")


def test_the_output_without_required_arguments_is_as_recorded() -> None:
    """Only commands that need an argument: others scan this machine, or run for ever."""
    transcript = Transcript()
    for words in (
        *(("logs",), ("restart",), ("reassign",), ("drain",), ("explain",)),
        *(("config", "check"), ("dashboards", "export"), ("rules", "export")),
        *(("plugin", "copy"), ("roles", "explain"), ("install",)),
        *(("uninstall",), ("plan",), ("whatif",), ("separation",), ("rebalance",), ("compare",)),
        *(("tune", "prefill"), ("tune", "decode")),
    ):
        transcript.run(*words)
    transcript.check("no-argument")


NODE = """\
node: gpu-7
cluster: lab
workers:
  - {name: prefill-0, role: prefill, gpus: [0], model: /models/llama, port: 8100,
     kv_transfer: {connector: NixlConnector, side_channel_port: 5600}}
  - {name: decode-0, role: decode, gpus: [1], model: /models/llama, port: 8200,
     kv_transfer: {connector: NixlConnector, side_channel_port: 5610}}
"""

OF_LLAMA = WorkerView(
    "", WorkerState.READY, role="decode", model_name="llama", restart_seconds=700.0
)
STANDS = (
    replace(READY, incarnation=1, model_name="llama", restart_seconds=700.0),
    replace(STARTING, incarnation=3, model_name="llama", restart_seconds=700.0),
    replace(
        OF_LLAMA,
        worker="decode-1",
        state=WorkerState.BACKOFF,
        incarnation=2,
        state_seconds=3.0,
        restarts=2,
        reason="crashed: SIGSEGV; start 3 in 8 s",
        gpus=("GPU-d",),
        port=8003,
        deadline_seconds=5.0,
    ),
    replace(
        OF_LLAMA,
        worker="decode-2",
        state=WorkerState.FAILED,
        incarnation=5,
        state_seconds=7200.0,
        restarts=4,
        reason="gave up: 5 crashes in 10 min; last: exit code 1",
        gpus=("GPU-e",),
        port=8004,
    ),
    replace(
        OF_LLAMA,
        worker="decode-4",
        state=WorkerState.FAILED,
        incarnation=1,
        state_seconds=13.0,
        reason="given up after 1 crash, tried again after 600 s",
        gpus=("GPU-g",),
        port=8006,
        deadline_seconds=587.0,
    ),
    replace(
        OF_LLAMA,
        worker="decode-3",
        incarnation=1,
        pid=15,
        state_seconds=7200.0,
        paused_seconds=61.0,
        unanswered="/health: no answer in time",
        gpus=("GPU-f",),
        port=8005,
    ),
)
OTHERWISE = RereadReport(
    workers=("decode-0",),
    applied=("decode-0: args: [] -> ['--max-num-seqs', '64']",),
    deferred=("listen.metrics: 127.0.0.1:9847 -> 127.0.0.1:9900",),
    added=("decode-4",),
    removed=("decode-2",),
)


def test_the_output_for_workers_in_all_states_is_as_recorded(folder: Path) -> None:
    logs = folder / "logs"
    logs.mkdir()
    workers = []
    for worker in STANDS:
        log = logs / f"{worker.worker}.log"
        log.write_text(f"{worker.worker} began\n{worker.worker} goes on\n")
        workers.append(replace(worker, log_path=str(log)))
    transcript = Transcript({str(folder): "RUN"})
    here = ("--run-dir", folder)
    with controlled_node(folder, workers, OTHERWISE):
        transcript.run("status", *here)
        transcript.run("status", "--json", *here)
        for worker in STANDS:
            transcript.run("explain", worker.worker, *here)
        transcript.run("explain", "decode-9", *here)
        transcript.run("logs", "decode-2", "-n", 1, *here)
        transcript.run("logs", "decode2", *here)
        for verb in ("pause", "resume"):
            transcript.run(verb, *here)
            transcript.run(verb, "decode-2", *here)
        transcript.run("restart", "decode-3", "--no-wait", *here)
        transcript.run("restart", "decode-9", *here)
        transcript.run("drain", "prefill-0", *here)
        transcript.run("reassign", "prefill-0", "--role", "decode", "--dry-run", *here)
        transcript.run("reassign", "prefill-0", "--role", "prefill", *here)
        transcript.run("reload", "--dry-run", *here)
        transcript.run("reload", *here)
    transcript.check("workers")


def test_the_output_of_a_daemon_without_workers_is_as_recorded(folder: Path) -> None:
    transcript = Transcript({str(folder): "RUN"})
    with controlled_node(folder, ()):
        for command in ("status", "reload", "pause"):
            transcript.run(command, "--run-dir", folder)
        transcript.run("logs", "decode-0", "--run-dir", folder)
    transcript.check("no-worker")


def test_the_output_without_a_daemon_is_as_recorded(folder: Path) -> None:
    port = free_port()
    transcript = Transcript({str(folder): "RUN", str(port): "PORT"})
    for words in (
        *(["status"], ["logs", "decode-0"], ["reload"], ["pause"], ["resume"], ["stop"]),
        *(["restart", "decode-0"], ["drain", "decode-0"], ["explain", "decode-0"]),
        ["reassign", "decode-0", "--role", "prefill"],
    ):
        transcript.run(*words, "--run-dir", folder)
    for command in ("phases", "doctor", "top"):
        transcript.run(command, "--url", f"http://127.0.0.1:{port}")
    address = f"http://127.0.0.1:{port}"
    for words in (["report"], ["diagnose"], ["forecast"], ["top"]):
        transcript.run(*words, "--prometheus", address)
    transcript.check("nobody-answers")


@contextmanager
def page(text: bytes, view: bytes = VIEW) -> Iterator[str]:
    """A daemon's page for machines, and the view of its page for people."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(view if self.path == "/view.json" else text)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        yield url


def test_the_output_of_phases_and_doctor_is_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disagg_cluster.inspect.doctor.gathering.other_daemons", lambda *_: ())
    transcript = Transcript()
    golden = (DATA / "golden_page.prom").read_bytes()
    with page(golden) as url:
        transcript.hide(url, "URL")
        for words in (["phases"], ["phases", "--wide"], ["phases", "--json"]):
            transcript.run(*words, "--url", url)
        for words in (["doctor"], ["doctor", "--json"]):
            transcript.run(*words, "--url", url)
    transcript.check("page")


def test_the_output_for_a_missing_wrong_and_valid_node_file_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagg_cluster.nodefile.reading._lacks", lambda *_: False)
    transcript = Transcript({str(tmp_path): "DIR", sys.executable: "PYTHON"})
    file = tmp_path / "node.yaml"
    transcript.run("config", "check", file)
    file.write_text("devices: cpu\nworkers:\n  - {name: a, role: prefil, port: 81000}\n")
    transcript.run("config", "check", file)
    transcript.run("start", "--config", file)
    file.write_text(NODE)
    transcript.run("config", "check", file, "--elsewhere")
    transcript.check("node-file")


def test_the_output_of_commands_that_write_files_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    transcript = Transcript({str(tmp_path): "DIR", str(engine_side_folder()): "PLUGIN"})
    for command in ("dashboards", "rules"):
        transcript.run(command, "export", tmp_path / command)
        changed = min((tmp_path / command).rglob("*.yaml"))
        changed.write_text("mine\n")
        transcript.run(command, "export", tmp_path / command)
    for form in ((), ("--json",)):
        transcript.run("plugin", "copy", tmp_path / "plugin", *form)
        transcript.run("plugin", "env", "--run-dir", tmp_path / "run", *form)
    engine = tmp_path / "engine.json"
    engine.write_text('{"argv": ["vllm", "serve", "m", "--enable-sleep-mode"]}')
    transcript.run("roles", "explain", engine)
    transcript.run("roles", "explain", tmp_path / "none.json")
    transcript.run("uninstall", "--into", tmp_path / "site")
    transcript.run("install", "--into", tmp_path / "a" / "file.txt", "--part", "cloud")
    transcript.check("written")
