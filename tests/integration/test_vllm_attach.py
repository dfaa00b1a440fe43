"""A real vLLM engine that a person starts: found, its role right, measured as well as can be."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.demo.disaggregated_client import complete_on_one
from support.children import free_port
from support.running_node import (
    DISAGG_NODE,
    Page,
    RunningNode,
    plugin_environment,
    running_node,
    wait_for,
)
from support.vllm_nodes import CPU_ENVIRONMENT, ENGINE_ARGS, MODEL_NAME
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

# About a minute where nothing else runs.
START_SECONDS = 500.0
DETAILS = "--enable-logging-iteration-details"


@contextlib.contextmanager
def by_hand(
    python: Path, model: Path, port: int, log: Path, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start vLLM as a person does, in a shell of its own; end it."""
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *ENGINE_ARGS, *arguments],
            env=os.environ | CPU_ENVIRONMENT | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def node(short_folder: Path) -> Iterator[RunningNode]:
    """A daemon that launches nothing."""
    folder = short_folder / "attach"
    folder.mkdir()
    file = {
        "devices": "cpu",
        "run_dir": str(folder / "run"),
        "listen": {"metrics": f"127.0.0.1:{free_port()}"},
        "workers": [],
        "attach": {},
    }
    with running_node(file, folder) as running:
        wait_for(lambda: "metrics page" in running.log(), "the daemon to serve")
        yield running


def load(url: str, stopping: threading.Event) -> None:
    """One request after the other."""
    for number in range(100_000):
        if stopping.is_set():
            return
        complete_on_one(url, MODEL_NAME, f"{number} tells of keys and values " * 4, 12, 180.0)


def doctor(node: RunningNode, engine: str) -> list[str]:
    """What the doctor says of an engine; others may run on this machine, too."""
    url = node.page_url.removesuffix("/metrics")
    command = [*DISAGG_NODE, "doctor", "--url", url, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = [f"{f['level']}: {f['what']}" for f in json.loads(told)["findings"]]
    return [finding for finding in found if engine in finding]


def measured(node: RunningNode, engine: str, method: str) -> Page:
    """Wait until an engine is measured by a method and both its phases move."""

    def moving() -> Page | None:
        page = node.page()
        seconds = {
            p: page.sum("disagg_engine_gpu_seconds_total", engine=engine, phase=p)
            for p in ("prefill", "decode")
        }
        by = page.sum("disagg_attribution_info", engine=engine, method=method)
        return page if by and all(seconds.values()) else None

    return wait_for(moving, f"{engine} to be measured by {method}", START_SECONDS)


def test_an_engine_is_measured_by_its_page_and_exactly_once_it_sends_its_steps(
    node: RunningNode, vllm_python: Path, slow_model: Path, short_folder: Path, say: Say
) -> None:
    port = free_port()
    engine, url = f"vllm-{port}", f"http://127.0.0.1:{port}"
    stopping = threading.Event()

    with by_hand(vllm_python, slow_model, port, short_folder / "page.log"):
        wait_for(
            lambda: node.page().sum("disagg_engine_up", engine=engine),
            "it to be found",
            START_SECONDS,
        )
        loading = threading.Thread(target=load, args=(url, stopping))
        loading.start()
        try:
            page = measured(node, engine, "page_cpu")
        finally:
            stopping.set()
            loading.join(180)
        # An idle engine has no work, though its processes use some CPU. Its page may report its
        # last request a scrape or two later.
        resting = time.time() + 3
        worked = node.wait_committed(engine, resting).sum(
            "disagg_engine_gpu_seconds_total", engine=engine
        )
        rested = (
            node.wait_committed(engine, resting + 15).sum(
                "disagg_engine_gpu_seconds_total", engine=engine
            )
            - worked
        )
        say(f"attached by hand: {worked:.1f} s by its page, {rested:.3f} s more in 15 s of rest")
        assert rested == 0
        [(facts, _)] = [
            row for row in page.samples["disagg_engine_info"] if row[0]["engine"] == engine
        ]
        assert (facts["role"], facts["model_name"]) == ("mixed", MODEL_NAME)
        role, accuracy = doctor(node, engine)
        assert role.startswith(f"fine: {engine} is mixed")
        assert accuracy.startswith(f"warn: {engine}: inexact: CPU time")
    wait_for(lambda: not node.page().sum("disagg_engine_up", engine=engine), "it to be gone")

    variables = plugin_environment(short_folder / "attach" / "run")
    assert variables.keys() == {"PYTHONPATH", "DISAGG_STEPS_SOCKET"}
    stopping.clear()
    log = short_folder / "steps.log"
    with by_hand(vllm_python, slow_model, port, log, DETAILS, **variables):
        wait_for(
            lambda: node.page().sum("disagg_engine_up", engine=engine),
            "it to be back",
            START_SECONDS,
        )
        loading = threading.Thread(target=load, args=(url, stopping))
        loading.start()
        try:
            before = measured(node, engine, "steps")
            steps = before.sum("disagg_engine_steps_total", engine=engine)
            page = wait_for(
                lambda: (
                    now
                    if (now := node.page()).sum("disagg_engine_steps_total", engine=engine)
                    > steps + 100
                    else None
                ),
                "a hundred steps more",
            )
        finally:
            stopping.set()
            loading.join(180)
        assert f"fine: {engine}: measured step by step" in "\n".join(doctor(node, engine))
    told = page.sum("disagg_engine_step_seconds_total", engine=engine)
    say(
        f"attached by hand: {page.sum('disagg_engine_steps_total', engine=engine):.0f} steps, "
        f"{told:.1f} s told"
    )
