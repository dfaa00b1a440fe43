from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.config import NodeConfig, Router
from disagg_cluster.router_command import router_command, router_engines, start_seconds
from disagg_exporter.model import Phase, RouterEngine
from support.node_files import node, worker


def standins(**router: Any) -> tuple[NodeConfig, Router]:
    """Two prefill, one decode and a mixed stand-in behind a router."""
    config = node(
        worker("prefill-0", engine="standin", role="prefill", port=8100, host="0.0.0.0"),
        worker("decode-0", engine="standin", role="decode", port=8200),
        worker("prefill-1", engine="standin", role="prefill", port=8101, host="0.0.0.0"),
        worker("mixed-0", engine="standin", port=8300),
        devices="sim",
        router={"python": "/venv/bin/python", **router},
    )
    assert config.router is not None
    return config, config.router


def test_the_router_is_told_every_engine_that_has_half_of_a_request_to_do() -> None:
    command = router_command(*standins())

    assert command.argv == (
        *("/venv/bin/python", "-m", "vllm_router.launch_router", "--vllm-pd-disaggregation"),
        *("--prefill", "http://127.0.0.1:8100", "--prefill", "http://127.0.0.1:8101"),
        *("--decode", "http://127.0.0.1:8200", "--host", "127.0.0.1", "--port", "8000"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "29000"),
        *("--policy", "round_robin", "--kv-connector", "nixl"),
        *("--health-check-interval-secs", "5", "--worker-startup-timeout-secs", "960"),
        *("--worker-startup-check-interval", "1"),
    )
    assert command.env == {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def test_a_file_may_say_more_to_the_router() -> None:
    command = router_command(
        *standins(
            host="0.0.0.0",
            port=80,
            metrics_port=29001,
            policy="cache_aware",
            prefill=["http://10.0.0.7:8100/"],
            decode=["http://10.0.0.8:8200"],
            args=["--log-level", "warning"],
            env={"NO_PROXY": "mine"},
        )
    )

    asked = [*zip(command.argv, command.argv[1:], strict=False)]
    assert [url for option, url in asked if option == "--prefill"][-1] == "http://10.0.0.7:8100"
    assert [url for option, url in asked if option == "--decode"][-1] == "http://10.0.0.8:8200"
    assert {("--host", "0.0.0.0"), ("--port", "80"), ("--prometheus-port", "29001")} < {*asked}
    assert ("--policy", "cache_aware") in asked
    assert command.argv[-2:] == ("--log-level", "warning")
    assert command.env == {"NO_PROXY": "mine", "no_proxy": "127.0.0.1,10.0.0.7,10.0.0.8"}


def test_a_mooncake_engine_is_named_with_the_port_on_which_it_says_who_it_is() -> None:
    transfer = {"connector": "MooncakeConnector", "side_channel_port": 9000}
    config = node(
        worker("prefill-0", role="prefill", port=8100, kv_transfer=transfer),
        worker("decode-0", role="decode", port=8200, kv_transfer=transfer),
        router={"kv_connector": "mooncake"},
    )
    assert config.router is not None

    argv = router_command(config, config.router).argv

    first = argv.index("--prefill")
    assert argv[first : first + 3] == ("--prefill", "http://127.0.0.1:8100", "9000")


def test_an_engine_is_called_by_its_worker_or_by_where_it_is() -> None:
    assert router_engines(*standins(decode=["http://10.0.0.8:8200"])) == (
        RouterEngine("http://127.0.0.1:8100", "prefill-0", Phase.PREFILL),
        RouterEngine("http://127.0.0.1:8101", "prefill-1", Phase.PREFILL),
        RouterEngine("http://127.0.0.1:8200", "decode-0", Phase.DECODE),
        RouterEngine("http://10.0.0.8:8200", "10.0.0.8:8200", Phase.DECODE),
    )


@pytest.mark.parametrize(
    ("deadlines", "seconds"),
    [({}, 960.0), ({"stop_seconds": 3}, 960.0), ({"start_seconds": 20}, 20.0)],
)
def test_unless_told_the_router_may_take_longer_to_start_than_its_slowest_engine(
    deadlines: dict[str, float], seconds: float
) -> None:
    """It listens only when all of them are well."""
    assert start_seconds(*standins(deadlines=deadlines)) == seconds
