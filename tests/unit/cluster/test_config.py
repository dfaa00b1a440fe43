from __future__ import annotations

import json
import sys

import pydantic
import pytest

from disagg_cluster.config import NodeConfig
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.problems import ConfigError
from disagg_exporter.devices import DeviceKind
from disagg_exporter.listen import ListenAddress
from disagg_exporter.model import Role
from support.node_files import HAS_ALL, node, worker


def test_a_file_may_say_next_to_nothing() -> None:
    config = from_mapping({"node": "n"}, "test", HAS_ALL)

    assert config == NodeConfig(node="n")
    assert config.devices is DeviceKind.AUTO
    assert config.listen.metrics_address == ListenAddress("0.0.0.0", 9847)
    assert config.intervals.devices_seconds == 0.1
    assert config.run_folder is None
    assert config.workers == ()


def test_a_node_is_called_after_its_host_unless_it_is_told() -> None:
    import platform

    assert from_mapping({}, "test", HAS_ALL).node == platform.node()


def test_every_key_of_a_worker_arrives() -> None:
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
def test_nixl_wherever_it_hides_takes_a_side_channel_port_for_each_rank(
    kv_transfer: dict[str, object], ports: range
) -> None:
    (given,) = node(worker(gpus=2, kv_transfer=kv_transfer)).workers

    assert given.side_channel_ports == ports


def test_a_home_folder_is_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_these_are_addresses(text: str, address: ListenAddress) -> None:
    assert node(listen={"metrics": text}).listen.metrics_address == address


@pytest.mark.parametrize(
    "text", ["", "9847", "h:", "h:65536", "h:-1", "300.0.0.1:1", "1.2:1", "a b:1", "::1:1", "[x]:1"]
)
def test_these_are_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an address"):
        node(listen={"metrics": text})


def test_the_json_schema_describes_every_key() -> None:
    schema = NodeConfig.model_json_schema()

    sections = [schema, *schema["$defs"].values()]
    fields = [field for section in sections for field in section.get("properties", {}).values()]
    assert len(fields) > 30
    assert [field for field in fields if not ("description" in field or "$ref" in str(field))] == []
    assert json.loads(json.dumps(schema)) == schema
