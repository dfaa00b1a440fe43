from __future__ import annotations

import json
import sys

import pydantic
import pytest

from disagg_cluster.config import Deadlines, GpuPriceConfig, NodeConfig
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.config.restart_policy import RestartPolicy, restart_policy
from disagg_cluster.nodefile import from_mapping
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.model import Role
from support.node_files import HAS_ALL, node, worker


def test_a_file_with_only_a_node_name_has_defaults() -> None:
    config = from_mapping({"node": "n"}, "test", HAS_ALL)

    assert config == NodeConfig(node="n")
    assert config.devices is DeviceKind.AUTO
    assert config.listen.metrics_address == ListenAddress("0.0.0.0", 9847)
    assert config.intervals.devices_seconds == 0.1
    assert config.run_folder is None
    assert config.workers == ()


def test_the_default_node_name_is_the_host_name() -> None:
    import platform

    assert from_mapping({}, "test", HAS_ALL).node == platform.node()


def test_every_key_of_a_worker_is_read() -> None:
    (given,) = node(
        worker(
            "encode-0",
            engine="vllm",
            role="encode",
            gpus=[0, "GPU-1"],
            served_model_name="m",
            python="/venv/bin/python",
            tensor_parallel_size=2,
            args=["--seed", "1"],
            env={"A": "b"},
            kv_transfer={
                "connector": "NixlConnector",
                "role": "kv_both",
                "side_channel_port": 5700,
                "extra_config": {"a": [1, {"b": None}]},
                "buffer_device": "cpu",
            },
            deadlines={"start_seconds": 1, "drain_seconds": 2.5, "stop_seconds": 3},
        )
    ).workers

    assert given.role is Role.ENCODE
    assert given.gpus == (0, "GPU-1")
    assert (given.gpu_count, given.tp_size) == (2, 2)
    assert given.model_name == "m"
    assert given.python == "/venv/bin/python"
    assert given.args == ("--seed", "1")
    assert given.env == {"A": "b"}
    assert given.kv_transfer is not None
    assert given.kv_transfer.extra_config == {"a": [1, {"b": None}]}
    assert given.side_channel_ports == range(5700, 5702)
    assert given.deadlines.drain_seconds == 2.5


def test_a_worker_has_sensible_defaults() -> None:
    (given,) = node(worker(gpus=2)).workers

    assert given.engine == "vllm"
    assert given.tp_size == 2
    assert given.model_name == "org/model"
    assert given.python == sys.executable
    assert given.side_channel_ports == range(0)
    assert given.deadlines.start_seconds == 900


def test_without_gpus_the_model_is_on_one_device() -> None:
    assert node(worker(gpus=0)).workers[0].tp_size == 1


@pytest.mark.parametrize(
    ("kv_transfer", "ports"),
    [
        ({"connector": "NixlConnector"}, range(5600, 5602)),
        ({"connector": "NixlConnector", "side_channel_port": 6000}, range(6000, 6002)),
        ({"connector": "ExampleConnector"}, range(0)),
        (
            {
                "connector": "MultiConnector",
                "extra_config": {"connectors": [{"kv_connector": "NixlConnector"}]},
            },
            range(5600, 5602),
        ),
    ],
)
def test_a_nixl_connector_takes_a_side_channel_port_for_each_rank(
    kv_transfer: dict[str, object], ports: range
) -> None:
    (given,) = node(worker(gpus=2, kv_transfer=kv_transfer)).workers

    assert given.side_channel_ports == ports


@pytest.mark.parametrize(
    ("keys", "ports"),
    [
        ({"role": "prefill"}, range(8998, 8999)),
        ({"role": "decode"}, range(0)),
        ({"role": "prefill", "engine": "sglang"}, range(8998, 8999)),
        ({"role": "decode", "engine": "sglang"}, range(0)),
        ({"role": "mixed"}, range(8998, 8999)),
    ],
)
def test_mooncake_and_sglang_take_one_side_channel_port_where_they_prefill(
    keys: dict[str, str], ports: range
) -> None:
    kv_transfer = {"connector": "MooncakeConnector"}
    (given,) = node(
        worker(gpus=2, kv_transfer=kv_transfer, host="10.0.0.7", **keys), peers="elsewhere"
    ).workers

    assert list(given.side_channel_ports) == list(ports)


@pytest.mark.parametrize(
    ("host", "probed", "url"),
    [
        ("127.0.0.1", "127.0.0.1", "http://127.0.0.1:8100"),
        ("0.0.0.0", "127.0.0.1", "http://127.0.0.1:8100"),
        ("10.0.0.7", "10.0.0.7", "http://10.0.0.7:8100"),
        ("::", "::1", "http://[::1]:8100"),
        ("fd00::7", "fd00::7", "http://[fd00::7]:8100"),
    ],
)
def test_an_engine_is_probed_at_an_address_of_its_listen_host(
    host: str, probed: str, url: str
) -> None:
    (given,) = node(worker(host=host)).workers

    assert (given.probe_host, given.url) == (probed, url)


def test_the_default_restart_policy_is_that_of_the_supervisor() -> None:
    config = node(worker())

    assert (
        restart_policy(config.workers[0].deadlines, config.restart, config.health)
        == RestartPolicy()
    )


def test_a_worker_overrides_only_the_restart_keys_it_sets() -> None:
    config = node(
        worker(restart={"crash_limit": 2, "backoff_max_seconds": 60.0}),
        restart={"backoff_first_seconds": 0, "backoff_max_seconds": 30.0, "hang_probes": 3},
    )

    restart = config.restart.overridden_by(config.workers[0].restart)

    assert restart_policy(Deadlines(stop_seconds=4), restart) == RestartPolicy(
        stop_seconds=4,
        backoff_first_seconds=0,
        backoff_max_seconds=60.0,
        crash_limit=2,
        hang_probes=3,
    )


def test_a_node_has_log_size_sigterm_and_gpu_price_settings() -> None:
    config = node(log_megabytes=5, on_sigterm="leave", gpu_price={"currency": "EUR", "per_hour": 2})

    assert (config.log_megabytes, config.on_sigterm) == (5, "leave")
    assert config.gpu_price == GpuPriceConfig(currency="EUR", per_hour=2.0)
    assert (node().log_megabytes, node().on_sigterm, node().gpu_price) == (100, "stop", None)


def test_a_tilde_is_expanded_to_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    config = node(worker(model="~/m", python="~/v/bin/python"), run_dir="~/run")

    assert config.workers[0].model == "/home/me/m"
    assert config.workers[0].python == "/home/me/v/bin/python"
    assert config.run_dir == "/home/me/run"


def test_a_configuration_cannot_be_changed() -> None:
    config = node(worker())

    with pytest.raises(pydantic.ValidationError):
        config.node = "other"
    with pytest.raises(pydantic.ValidationError):
        config.workers[0].port = 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("[::1]:9847", ListenAddress("::1", 9847)),
        ("gpu-7.example:9847", ListenAddress("gpu-7.example", 9847)),
        (":9847", ListenAddress("", 9847)),
    ],
)
def test_valid_listen_addresses_are_parsed(text: str, address: ListenAddress) -> None:
    assert node(listen={"metrics": text}).listen.metrics_address == address


@pytest.mark.parametrize(
    "text", ["", "9847", "h:", "h:65536", "h:-1", "300.0.0.1:1", "1.2:1", "a b:1", "::1:1", "[x]:1"]
)
def test_invalid_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an address"):
        node(listen={"metrics": text})


def test_the_json_schema_describes_every_key() -> None:
    schema = NodeConfig.model_json_schema()

    sections = [schema, *schema["$defs"].values()]
    fields = [field for section in sections for field in section.get("properties", {}).values()]
    assert len(fields) > 30
    assert [field for field in fields if not ("description" in field or "$ref" in str(field))] == []
    assert json.loads(json.dumps(schema)) == schema
