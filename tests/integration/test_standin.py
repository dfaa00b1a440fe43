"""Stand-in engines as real processes: they serve, their steps arrive, they end when told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disagg_cluster.demo.disaggregated_client import NIXL, complete, complete_on_one
from disagg_cluster.demo.standin import StandinCosts
from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_exporter.devices.simulated import SimDevices
from disagg_exporter.inside_engine.disagg_steps import wire
from support.standins import MODEL, SECONDS, StandInProcess, standin, standin_argv

RUNNING = f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}'
SLOW = ("--costs", json.dumps({"step_base_seconds": 0.25}))


@pytest.fixture(scope="module")
def prefill() -> Iterator[StandInProcess]:
    """One engine for the tests that do not read its records."""
    with standin("prefill") as process:
        yield process


def steps_until(engine: StandInProcess, written: int) -> list[wire.Record]:
    """The step records until one says that so many tokens have been decoded or prompts ended."""
    records = []
    while True:
        record = engine.record()
        if record.kind == wire.STEP and record.elapsed_ns:
            records.append(record)
        if record.kind == wire.STEP and record.running == 0 and len(records) >= written:
            return records


def wait_for(engine: StandInProcess, series: str, value: float) -> None:
    until = time.monotonic() + SECONDS
    tick = threading.Event()
    while engine.value(series) != value:
        assert time.monotonic() < until, f"{series} never became {value}"
        tick.wait(0.01)


def test_a_prefill_and_a_decode_engine_serve_a_request_and_report_their_steps() -> None:
    """The decode engine computes no prompt, as on a real NIXL pair."""
    with standin("prefill") as prefill, standin("decode") as decode:
        done = complete(prefill.url, decode.url, MODEL, "word" * 3000, 5, NIXL, SECONDS)

        prefill_steps = steps_until(prefill, written=2)
        decode_steps = steps_until(decode, written=5)

        source = "vllm:prompt_tokens_by_source_total"
        labels = f'engine="0",model_name="{MODEL}",source="external_kv_transfer"'
        assert decode.value(f"{source}{{{labels}}}") == 3000

    assert (done.prompt_tokens, done.completion_tokens) == (3000, 5)
    assert [(step.context_tokens, step.computed_tokens) for step in prefill_steps] == [
        (2048, 0),
        (952, 3000),
    ]
    assert (prefill_steps[-1].prefill_tokens, prefill_steps[-1].decode_tokens) == (3000, 0)
    assert [(step.context_tokens, step.external_tokens) for step in decode_steps] == [
        (1, 3000),
        *[(0, 0)] * 4,
    ]
    assert (decode_steps[-1].prefill_tokens, decode_steps[-1].decode_tokens) == (0, 5)
    planned = StandinCosts().price(BatchWork(context_tokens=2048))
    assert prefill_steps[0].elapsed_ns >= round(planned.seconds * 1e9)
    assert {step.flags for step in prefill_steps + decode_steps} == {wire.SIMULATED}
    assert {step.pid for step in prefill_steps} == {prefill.process.pid}


def test_a_standin_engine_answers_health_models_and_metrics(prefill: StandInProcess) -> None:
    assert prefill.get("/health") == ""
    assert json.loads(prefill.get("/v1/models"))["data"][0]["id"] == MODEL
    assert prefill.value(f'disagg_simulated_info{{engine="0",model_name="{MODEL}"}}') == 1
    assert prefill.process.stdout is not None
    assert prefill.process.stdout.readline().startswith("stand-in engine prefill-0: role prefill")


def test_gpus_of_a_standin_engine_are_read_by_the_simulated_source(prefill: StandInProcess) -> None:
    devices = SimDevices(prefill.sim_dir, 3)
    complete_on_one(prefill.url, MODEL, "word" * 1000, 1, SECONDS)

    used, alike, other = devices.sweep(time.monotonic_ns()).readings

    assert used.pids == alike.pids == (prefill.process.pid,)
    assert used.memory_used_bytes == alike.memory_used_bytes != 0
    assert other.pids == ()


def test_an_idle_engine_costs_almost_no_cpu_and_little_memory() -> None:
    """Heartbeats come each second; the minimum of three excludes the cost of the start."""
    with standin("prefill") as engine:
        while engine.record().kind != wire.HEARTBEAT:
            pass
        costs = []
        for _ in range(3):
            before = cpu_seconds(engine.process.pid)
            assert engine.record().kind == wire.HEARTBEAT
            costs.append(cpu_seconds(engine.process.pid) - before)

        assert min(costs) <= 0.03
        assert resident_bytes(engine.process.pid) < 40 << 20


def test_an_invalid_request_is_refused_with_the_reason(prefill: StandInProcess) -> None:
    for body, status, said in [
        ({"model": "other", "prompt": "a"}, 404, "other"),
        ({"prompt": {"prompt_tokens": 500_000}}, 400, "KV cache"),
        ({"prompt": 7}, 400, "prompt must be"),
    ]:
        asked = urllib.request.Request(
            prefill.url + "/v1/completions", data=json.dumps(body).encode()
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=SECONDS)
        with refused.value:
            assert refused.value.code == status
            assert said in json.load(refused.value)["error"]["message"]


def test_sigterm_finishes_running_requests_refuses_new_ones_and_exits_with_0() -> None:
    with standin("mixed", *SLOW) as engine, ThreadPoolExecutor() as pool:
        answer = pool.submit(complete_on_one, engine.url, MODEL, "a", 4, SECONDS)
        wait_for(engine, RUNNING, 1)

        engine.process.terminate()

        assert answer.result(SECONDS).completion_tokens == 4
        assert engine.process.wait(SECONDS) == 0
        assert list(engine.sim_dir.iterdir()) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", engine.port), timeout=SECONDS)


def test_sigterm_aborts_a_request_that_takes_too_long() -> None:
    with standin("mixed", *SLOW) as engine, ThreadPoolExecutor() as pool:
        answer = pool.submit(complete_on_one, engine.url, MODEL, "a", 1000, SECONDS)
        wait_for(engine, RUNNING, 1)

        engine.process.terminate()

        assert engine.process.wait(10) == 0
        assert answer.exception(SECONDS) is not None


def test_a_request_is_cancelled_when_its_client_disconnects(prefill: StandInProcess) -> None:
    body = b'{"prompt": "a", "max_tokens": 100000}'
    with socket.create_connection(("127.0.0.1", prefill.port), timeout=SECONDS) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_for(prefill, RUNNING, 1)

    wait_for(prefill, RUNNING, 0)


def test_a_port_in_use_is_reported_with_exit_code_1(prefill: StandInProcess) -> None:
    second = subprocess.run(
        standin_argv(prefill.port), capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert second.returncode == 1
    assert "stand-in engine prefill-0 stops" in second.stdout
    assert "address already in use" in second.stdout


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_several_prompts_of_one_request_are_streamed_token_by_token(
    prefill: StandInProcess,
) -> None:
    asked = {"prompt": [[1] * 40, [2] * 50], "max_tokens": 3, "stream": True}
    request = urllib.request.Request(
        prefill.url + "/v1/completions", json.dumps(asked).encode(), method="POST"
    )

    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        lines = [line[6:] for line in answer.read().splitlines() if line]

    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert sorted(choice["index"] for choice in choices) == [0, 0, 0, 1, 1, 1]
    assert [choice["finish_reason"] for choice in choices[-2:]] == ["length", "length"]
    assert lines[-1] == b"[DONE]"
