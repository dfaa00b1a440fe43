"""A real pair whose daemon is killed under load: the engines go on, the next daemon adopts them."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disagg_cluster.demo.disaggregated_client import NIXL, complete
from support.children import free_port
from support.running_node import RunningNode, running_node, wait_for
from support.vllm_nodes import MODEL_NAME, TINY_MODEL, nixl_node
from support.vllm_session import Say, make_model

pytestmark = pytest.mark.vllm_long


@pytest.fixture
def node_file(vllm_python: Path, short_folder: Path) -> dict[str, object]:
    """The node file of a NIXL pair in a run folder of its own."""
    folder = short_folder / "planes"
    folder.mkdir()
    return nixl_node(
        python=vllm_python,
        model=make_model(vllm_python, short_folder / "planes-model", TINY_MODEL),
        run_dir=folder,
        metrics_port=free_port(),
        ports=(free_port(), free_port()),
        side_channel_ports=(free_port(), free_port()),
    )


def _starts(node: RunningNode) -> dict[str, float]:
    name = "disagg_worker_start_timestamp_seconds"
    return {labels["worker"]: value for labels, value in node.page().samples.get(name, [])}


def test_no_request_fails_while_the_daemon_is_killed_and_restarted(
    node_file: dict[str, object], short_folder: Path, say: Say
) -> None:
    """The measurement plane must never affect the serving plane."""
    folder = short_folder / "planes"
    enough = threading.Event()
    with running_node(node_file, folder) as first:
        first.wait_ready()
        prefill, decode = first.url("prefill-0"), first.url("decode-0")
        complete(prefill, decode, MODEL_NAME, "warm up", 4, NIXL, 180)
        started = _starts(first)

        def keep_asking(client: int) -> int:
            done = 0
            while not enough.is_set():
                prompt = f"{client} {done} words and more words"
                complete(prefill, decode, MODEL_NAME, prompt, 24, NIXL, 180)
                done += 1
            return done

        with ThreadPoolExecutor(2) as clients:
            answered = [clients.submit(keep_asking, client) for client in range(2)]
            busy = "disagg_engine_gpu_seconds_total"
            wait_for(lambda: first.page().sum(busy, engine="decode-0") > 0.2, "work to be booked")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            with running_node(node_file, folder) as second:
                second.wait_ready(60)
                assert _starts(second) == pytest.approx(started, abs=1.0)
                wait_for(lambda: second.page().sum(busy, engine="decode-0") > 0.2, "the new books")
                enough.set()
                counts = [future.result() for future in answered]
                page = second.wait_settled()
                assert page.sum("disagg_worker_restarts_total") == 0
                assert page.sum("disagg_gpu_unobserved_seconds_total") < 15
                say(f"{sum(counts)} requests answered over the daemon's death, none failed")
    assert min(counts) > 3
