"""The interfaces of a stand-in engine: its page, its completions, its HTTP, its GPUs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.demo import routes
from disagg_cluster.demo.http1 import HttpAnswer, HttpConnection, HttpRequest, take_request
from disagg_cluster.demo.simulated_gpu import REST, GpuMeter, SimGpus, load_of
from disagg_cluster.demo.standin import StandinCosts, parse_options
from disagg_cluster.simulator.engine.batch import Outcome, SchedulerState, Sequence
from disagg_cluster.simulator.engine.hardware import H100
from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_cluster.simulator.telemetry.page import Page, PageFacts
from disagg_cluster.simulator.telemetry.page_counters import PageCounters
from disagg_exporter.devices.simulated import SimDevices

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"
S = 1_000_000_000
NEEDED = ("--name", "p", "--role", "prefill", "--port", "81", "--model", "m")


def shown() -> str:
    ended = Sequence(1, 300, 1, 0)
    ended.first_token_ns = ended.last_token_ns = S
    outcome = Outcome(ended_ns=S, length_ns=S, count=1, computed_tokens=300, external_tokens=40)
    outcome.started = [Sequence(2, 9, 9, S - S // 50), Sequence(3, 9, 9, -2999 * S)]
    outcome.finished = [ended]
    outcome.gaps = {12_000_000: 2, 300_000_000: 1}
    counters = PageCounters()
    counters.count(outcome)
    counters.aborted = 2
    facts = PageFacts('m"1', created_seconds=1.75e9, connector=True, blocks=9, block_tokens=16)
    standing = SchedulerState(running=7, waiting=3, deferred=2, kv_usage_ratio=0.25)
    return Page(facts, counters).render(standing)


def test_the_page_reports_the_engines_work() -> None:
    values = {
        (
            sample.name,
            *(v for k, v in sample.labels.items() if k not in ("engine", "model_name")),
        ): (sample.value)
        for family in text_string_to_metric_families(shown())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }

    assert (
        values.items()
        >= {
            ("disagg_simulated_info",): 1,
            ("vllm:num_requests_running",): 7,
            ("vllm:num_requests_waiting",): 5,
            ("vllm:num_requests_waiting_by_reason", "capacity"): 3,
            ("vllm:num_requests_waiting_by_reason", "deferred"): 2,
            ("vllm:kv_cache_usage_perc",): 0.25,
            ("vllm:prompt_tokens_total",): 340,
            ("vllm:prompt_tokens_by_source_total", "local_compute"): 300,
            ("vllm:prompt_tokens_by_source_total", "local_cache_hit"): 0,
            ("vllm:prompt_tokens_by_source_total", "external_kv_transfer"): 40,
            ("vllm:generation_tokens_total",): 5,
            ("vllm:request_success_total", "stop"): 0,
            ("vllm:request_success_total", "length"): 1,
            ("vllm:request_success_total", "abort"): 2,
            ("vllm:request_success_total", "error"): 0,
            ("vllm:time_to_first_token_seconds_count",): 2,
            ("vllm:time_to_first_token_seconds_sum",): 3000.02,
            ("vllm:inter_token_latency_seconds_count",): 3,
        }.items()
    )
    assert values["vllm:inter_token_latency_seconds_sum",] == pytest.approx(0.324)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    buckets = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(shown())
        for sample in family.samples
        if sample.name == "vllm:time_to_first_token_seconds_bucket"
    }

    assert (buckets["0.01"], buckets["0.02"], buckets["2560.0"], buckets["+Inf"]) == (0, 1, 1, 2)


def test_every_series_except_the_marker_is_one_of_vllms() -> None:
    def forms(page: str) -> set[tuple[str, str, str]]:
        return {
            (
                sample.name,
                family.type,
                ",".join(sorted((*sample.labels, sample.labels.get("le", "")))),
            )
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    real = forms((CAPTURES / "nixl_decode.prom").read_text(encoding="utf-8"))

    assert forms(shown()) - real == {("disagg_simulated_info", "gauge", ",engine,model_name")}


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("word" * 9, 9),
        ("word" * 9 + "x", 10),
        ("", 1),
        ([5, 6, 7], 3),
        ({"prompt_tokens": 812}, 812),
    ],
)
def test_a_prompt_is_a_text_a_list_of_tokens_or_a_length(prompt: object, tokens: int) -> None:
    asked = routes.parse_completion(json.dumps({"prompt": prompt}).encode())

    assert (asked.prompt_tokens, asked.max_tokens) == (tokens, 16)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "JSON object"),
        (b"{}", "prompt must be"),
        (b'{"prompt": []}', "prompt must be"),
        (b'{"prompt": {"prompt_tokens": 0}}', "prompt_tokens must be"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens must be"),
        (b'{"prompt": "a", "max_tokens": true}', "max_tokens must be"),
        (b'{"prompt": [[1], []]}', "prompt must be"),
        (b'{"prompt": "a", "kv_transfer_params": 7}', "kv_transfer_params"),
    ],
)
def test_a_body_that_is_no_completion_is_refused_with_the_reason(body: bytes, said: str) -> None:
    with pytest.raises(routes.BadCompletionRequestError, match=said):
        routes.parse_completion(body)


def test_the_answer_of_prefill_makes_the_request_to_decode_a_remote_one() -> None:
    body = {"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    asked = routes.parse_completion(json.dumps(body).encode())

    answer = routes.completion_body(asked, model="m", engine="prefill-0", request_id="r1")

    handed_over = {"prompt": "a", "kv_transfer_params": answer["kv_transfer_params"]}
    assert not asked.remote_prompt
    assert routes.parse_completion(json.dumps(handed_over).encode()).remote_prompt
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def test_a_plain_completion_transfers_nothing() -> None:
    asked = routes.parse_completion(b'{"prompt": "a", "max_tokens": 3, "kv_transfer_params": null}')

    answer = routes.completion_body(asked, model="m", engine="e", request_id="r1")

    assert answer["kv_transfer_params"] is None
    assert answer["choices"] == [{"index": 0, "text": " word word word", "finish_reason": "length"}]


def test_requests_are_parsed_from_the_buffer_one_by_one() -> None:
    buffer = bytearray(
        b"POST /a?b=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiGET /c HTTP/1.1\r\n\r\nGET"
    )

    assert take_request(buffer) == HttpRequest("POST", "/a", b"hi")
    assert take_request(buffer) == HttpRequest("GET", "/c", b"")
    assert take_request(buffer) is None
    assert buffer == b"GET"


@pytest.mark.parametrize(
    ("head", "last"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", True),
    ],
)
def test_a_client_may_ask_to_close_the_connection(head: bytes, last: bool) -> None:
    assert take_request(bytearray(head)) == HttpRequest("GET", "/", b"", last)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"x" * 20_000,
    ],
)
def test_invalid_requests_are_refused(sent: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        take_request(bytearray(sent))


async def talk(
    handler: Callable[[HttpRequest], Awaitable[HttpAnswer]],
    client: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]],
) -> bytes:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(handler), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            async with asyncio.timeout(10):
                return await client(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()


def test_a_connection_answers_in_order_and_is_kept_open() -> None:
    async def handler(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200, request.path.encode(), "text/plain")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /1 HTTP/1.1\r\n\r\nGET /22 HTTP/1.1\r\n\r\n")
        return b"".join([await reader.readuntil(b"/1"), await reader.readuntil(b"/22")])

    assert asyncio.run(talk(handler, client)) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n/1"
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n/22"
    )


def test_a_connection_is_closed_after_the_last_answer() -> None:
    async def handler(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200, b"bye", "text/plain")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        return await reader.read()

    assert asyncio.run(talk(handler, client)).endswith(b"\r\n\r\nbye")


def test_a_client_that_goes_away_cancels_its_answer() -> None:
    cancelled = asyncio.Event()
    begun = asyncio.Event()

    async def handler(request: HttpRequest) -> HttpAnswer:
        begun.set()
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await begun.wait()
        writer.close()
        await cancelled.wait()
        return b""

    asyncio.run(talk(handler, client))
    assert cancelled.is_set()


PROMPT = StandinCosts().price(BatchWork(context_tokens=100))
PREFILL = load_of(H100, PROMPT)


def test_a_meter_accounts_each_interval_at_its_own_power() -> None:
    meter = GpuMeter(charged_ns=10 * S)

    meter.draw(PREFILL, 12 * S)
    meter.draw(REST, 15 * S)

    assert meter.busy_ns == 3 * S
    assert meter.energy_joules == pytest.approx(2 * REST.watts + 3 * PREFILL.watts)
    assert meter.tensor_ns == 3 * S * PREFILL.tensor_ratio


def test_the_device_source_reads_the_work_of_an_engines_gpus(tmp_path: Path) -> None:
    devices = SimDevices(tmp_path, 3)
    gpus = SimGpus(tmp_path, [0, 2], 10 * S)
    gpus.write(10 * S)
    devices.sweep(10 * S)

    gpus.work(PROMPT, 10 * S)
    gpus.rest(10 * S + S // 4)
    gpus.write(10 * S + S // 2)

    readings = devices.sweep(10 * S + S // 2).readings
    assert [reading.busy_ratio for reading in readings] == [0.5, 0.0, 0.5]
    half = PREFILL.dram_ratio / 2
    assert [reading.dram_ratio for reading in readings] == [half, 0.0, half]
    gpus.leave()
    assert list(tmp_path.iterdir()) == []


def test_prefill_draws_more_than_decode_at_constant_costs_and_by_table() -> None:
    """Joules of the same seconds differ by phase."""
    table, gpu = parse_options([*NEEDED, "--prices", "rtx-pro-6000_llama-3.1-8b_1"]).step_costs()
    prompt = BatchWork(2048, 2048 * 2049 // 2, 2048)
    writing = BatchWork(writers=32, writers_kv_tokens=32_000)

    assert gpu.name.startswith("NVIDIA RTX PRO 6000")
    for costs, of in ((StandinCosts(), H100), (table, gpu)):
        drawn = [load_of(of, costs.price(work)).watts for work in (prompt, writing)]
        assert gpu.max_watts * 1.2 > drawn[0] > 1.3 * drawn[1] > 0.4 * of.max_watts


def test_a_table_may_be_a_file_whose_problems_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, broken = tmp_path / "own.csv", tmp_path / "broken.csv"
    shipped = resources.files("disagg_cluster.simulator.prices") / "tables"
    text = (shipped / "h100_llama-3.1-8b_1.csv").read_text(encoding="utf-8")
    own.write_text(text)
    broken.write_text(text + "tokens,7,,,,,-1\n")
    assert parse_options([*NEEDED, "--prices", str(own)]).step_costs()[1] == H100

    for wrong, said in (
        (str(broken), "microseconds is -1, not a number above 0"),
        (str(tmp_path / "none.csv"), "No such file"),
        ("h100", "no price table 'h100'; there are a100"),
    ):
        with pytest.raises(SystemExit):
            parse_options([*NEEDED, "--prices", wrong])
        assert said in capsys.readouterr().err


def test_the_command_line_of_the_supervisor_is_parsed() -> None:
    argv = [*NEEDED, "--gpus", "0,3", "--sim-dir", "/s"]

    options = parse_options([*argv, "--costs", '{"step_base_seconds": 0.5}'])

    assert (options.gpus, options.sim_dir, options.port) == ((0, 3), Path("/s"), 81)
    assert options.costs == StandinCosts(step_base_seconds=0.5)
    assert parse_options([*NEEDED, "--gpus", ""]).gpus == ()


@pytest.mark.parametrize(
    "wrong", ['--costs={"base": 1}', "--costs=x", "--gpus=a", "--role=router", "--prices=h9"]
)
def test_a_wrong_command_line_exits_with_2(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options([*NEEDED, wrong])

    assert stopped.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err
