"""`disagg-node tune` against stand-in engines: real processes, over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.planner.capacity.learned.tune_profile import read_profile
from support.interrupts import take_interrupts
from support.standins import MODEL, StandInProcess, standin

# Nine tenths of the best rate of 2048 tokens at 800. Steps are long beside what else a loaded
# machine does in them.
COSTS = {"step_base_seconds": 0.01, "prefill_token_seconds": 100e-6}
SECONDS = 60.0
TUNE = (sys.executable, "-m", "disagg_cluster.cli", "tune")


@pytest.fixture
def engine() -> Iterator[StandInProcess]:
    with standin("prefill", "--costs", json.dumps(COSTS)) as process:
        # Nobody reads its steps.
        process.steps.close()
        yield process


def node_file(folder: Path, engine: StandInProcess) -> Path:
    path = folder / "node.yaml"
    worker = f"name: p, role: mixed, model: m, port: {engine.port}, python: {sys.executable}"
    path.write_text(f"devices: cpu\nworkers:\n  - {{{worker}}}\n")
    return path


def test_a_knee_is_found_saved_in_a_profile_and_written_to_the_node_file(
    engine: StandInProcess, tmp_path: Path
) -> None:
    kept, file = tmp_path / "p.json", node_file(tmp_path, engine)
    command = [*TUNE, "prefill", "--engine", engine.url, "--prompt-tokens", "512"]

    done = subprocess.run(
        [*command, "--largest", "1536", "--json", "--profile", kept, "--write", file],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["prefill"]
    (length,) = found["lengths"]
    assert found["times"] == "page"
    assert 1024 <= length["steps"][-1]["size"] <= 1536
    # Other work on the machine makes steps longer and does not change their order.
    assert 300 < length["knee_tokens"] < 1200
    assert read_profile(kept).model_name == MODEL
    tokens = found["max_num_batched_tokens"]
    assert f'args: [--max-num-batched-tokens, "{tokens}"]' in file.read_text()


def test_ctrl_c_aborts_requests_prints_what_was_learned_and_writes_no_profile(
    engine: StandInProcess, tmp_path: Path
) -> None:
    kept = tmp_path / "p.json"
    running = f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}'
    command = [*TUNE, "decode", "--engine", engine.url, "--context-tokens", "64"]
    process = subprocess.Popen(
        [*command, "--itl", "5s", "--profile", str(kept)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=take_interrupts,
    )
    tick = threading.Event()
    # When four run at once, a single one has been timed.
    while (engine.value(running) or 0) < 4:
        assert process.poll() is None
        tick.wait(0.002)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 130, err
    assert "stopped before the end; no file is written; what was learned so far:" in err
    (probes,) = re.findall(r"^Contexts of 64 tokens: (\d+) probes?$", out, re.MULTILINE)
    timed = [int(size) for size in re.findall(r"^  (\d+) .*/s ", out, re.MULTILINE)]
    assert timed[0] == 1
    assert len(timed) <= int(probes)
    assert "Contexts of 64 tokens: no batch missed 5.00 s;" in out
    assert "Traceback" not in err + out
    while engine.value(running):
        tick.wait(0.01)
    assert not kept.exists()
