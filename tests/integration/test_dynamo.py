"""Real Dynamo workers (their mock engine needs no GPU): found, their pages, their steps by FPM."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from disagg_cluster.host.tcp_listeners import session_members
from disagg_cluster.telemetry.steps.fpm_feed import FpmFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import Assignment, Device, EngineState, Method, Phase, Role, Total
from support.children import free_port
from support.dynamo_node import DynamoNode, dynamo_node
from support.running_node import running_node, wait_for
from support.secluded_node import let_see, seclude

pytestmark = pytest.mark.dynamo_long

PYTHON_ENVIRONMENT = "DISAGG_DYNAMO_PYTHON"
REQUESTS, TOKENS = 24, 40


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoNode]:
    python = os.environ.get(PYTHON_ENVIRONMENT, "")
    if not python or not Path(python).exists():
        pytest.skip(f"NO DYNAMO: {PYTHON_ENVIRONMENT}={python!r} is no interpreter")
    with dynamo_node(Path(python).absolute(), tmp_path_factory.mktemp("dynamo")) as running:
        yield running


def load(node: DynamoNode) -> None:
    """Requests of different lengths, eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        prompts = [f"{number} " + "seconds " * 20 * number for number in range(1, REQUESTS + 1)]
        for done in [pool.submit(node.complete, prompt, TOKENS) for prompt in prompts]:
            done.result(60)


def books() -> Ledger:
    ledger = Ledger()
    for index, role in enumerate((Role.PREFILL, Role.DECODE)):
        ledger.add_device(Device(f"g{index}", index, "H100", f"nvidia{index}"), 0)
        ledger.assign(Assignment(str(role), role, (f"g{index}",), EngineState.READY, 0, (1,)))
        ledger.use(str(role), Method.FPM, 0)
    return ledger


def feeds(node: DynamoNode, ledger: Ledger) -> list[FpmFeed]:
    return [
        FpmFeed(
            name,
            [node.fpm_addresses[name]],
            ledger,
            CapacityModel(itl_seconds=0.05),
            node.relays[name],
            partial(session_members, node.relays[name]),
        )
        for name in ("prefill", "decode")
    ]


def test_every_token_of_real_workers_is_accounted_as_a_step(node: DynamoNode) -> None:
    """A decode request generates one token a step, so no step is lost or counted twice."""
    ledger = books()
    hearing = feeds(node, ledger)

    async def story() -> None:
        for feed in hearing:
            feed.open(asyncio.get_running_loop())
        async with asyncio.timeout(120):
            # Heartbeats, which are also the baselines of the accounts.
            while not all(feed.received_ns for feed in hearing):
                await asyncio.sleep(0.05)
            await asyncio.to_thread(load, node)
            while any(account.running for account in ledger.engine_accounts(0)):
                await asyncio.sleep(0.05)
        for feed in hearing:
            feed.close()

    asyncio.run(story())
    ledger.assign(Assignment("decode", Role.DECODE, ("g1",), EngineState.GONE, 2**62))
    ledger.assign(Assignment("prefill", Role.PREFILL, ("g0",), EngineState.GONE, 2**62))
    prefill, decode = ledger.engine_accounts(0)

    assert [feed.lost for feed in hearing] == [0, 0]
    assert (prefill.lost_records, decode.lost_records) == (0, 0)
    assert decode.phase_tokens[Role.DECODE, Phase.DECODE] == REQUESTS * TOKENS
    assert prefill.phase_tokens[Role.PREFILL, Phase.PREFILL] > 1000
    assert decode.reported.steps[0] == prefill.reported.steps[1] == 0
    assert decode.reported.elapsed_ns[1] > 0


def test_the_pages_of_real_workers_are_parsed(node: DynamoNode) -> None:
    node.complete("hello", 5)
    pages = {name: parse_page(fetch(url, 10.0), 0) for name, url in node.page_urls.items()}

    # Until the series of its engine exist, the page of a worker has request metrics only.
    assert pages["prefill"].kind == "dynamo"
    assert pages["prefill"].serving.totals[Total.FINISHED_REQUESTS] >= 1
    assert pages["decode"].kind == "vllm"
    assert pages["decode"].running is not None
    assert pages["decode"].serving.time_to_first_token is not None


def test_workers_are_found_with_their_ids_and_a_lost_registration_is_reported(
    node: DynamoNode, tmp_path: Path
) -> None:
    start = seclude(tmp_path / "proc")
    for pid in node.workers.values():
        let_see(tmp_path / "proc", pid)
    with tempfile.TemporaryDirectory(prefix="dn-") as folder:
        run_dir, metrics = Path(folder), f"127.0.0.1:{free_port()}"
        attach = {"processes": True, "kubernetes": "never", "dynamo_files": str(node.files)}
        file = {
            "node": "dynamo",
            "devices": "cpu",
            "run_dir": folder,
            "listen": {"metrics": metrics},
            "attach": attach,
            "workers": [],
        }
        with running_node(file, run_dir, start) as daemon:

            def registered() -> dict[str, float]:
                try:
                    rows = daemon.page().samples.get("disagg_engine_registered", [])
                except DisaggError:
                    return {}  # it is still starting
                return {labels["engine"]: value for labels, value in rows}

            wait_for(lambda: sorted(registered().values()) == [1, 1], "both workers")
            page = daemon.page().samples
            roles = {
                labels["role"]: (labels["engine"], labels["confidence"])
                for labels, _ in page["disagg_gpu_assignment_info"]
            }
            assert {role: sure for role, (_, sure) in roles.items()} == {
                "prefill": "high",
                "decode": "high",
            }
            for labels, _ in page["disagg_engine_dynamo_worker_info"]:
                assert int(labels["worker_id"], 16) == int(labels["worker_id_decimal"])

            for instance in (node.files / "v1" / "instances").glob("*prefill*/*"):
                instance.unlink()
            for instance in (node.files / "v1" / "instances").glob("*prefill*generate*"):
                instance.unlink()
            lost = {roles["prefill"][0]: 0.0, roles["decode"][0]: 1.0}
            wait_for(lambda: registered() == lost, "the prefill worker to be unregistered")
