from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.config.layout import place
from disagg_cluster.launch.command import build, child_environment
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.lifecycle.state import LaunchCommand
from disagg_exporter.model import Device
from support.node_files import gpu, node, worker

SOCKET = Path("/run/n/mixed-0.sock")
ENGINE_SIDE = Path("/lib/inside_engine")
GPUS = tuple(gpu(index) for index in range(4))


def built(
    devices: tuple[Device, ...] | None = GPUS,
    name: str = "mixed-0",
    peers: str = "here",
    **keys: Any,
) -> LaunchCommand:
    config = node(worker(name, **keys), peers=peers)
    return build(
        config.workers[0],
        place(config, devices).placements[0],
        steps_socket=SOCKET,
        engine_side_folder=ENGINE_SIDE,
    )


def test_vllm_is_started_with_all_settings_of_the_node_file() -> None:
    command = built(
        gpus=[2, 3],
        model="/models/m",
        served_model_name="m",
        python="/venv/bin/python",
        args=["--max-model-len", "8192"],
        env={"HF_HUB_OFFLINE": "1"},
    )

    assert command.argv == (
        *("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "/models/m", "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", "8100"),
        *("--tensor-parallel-size", "2", "--enable-logging-iteration-details"),
        *("--max-model-len", "8192"),
    )
    assert command.env == {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "/lib/inside_engine",
        "DISAGG_STEPS_SOCKET": "/run/n/mixed-0.sock",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }


def test_on_a_cpu_no_gpu_is_pinned() -> None:
    command = built(None, gpus=0, tensor_parallel_size=2)

    assert not [name for name in command.env if name.startswith("CUDA")]
    assert command.argv[command.argv.index("--tensor-parallel-size") + 1] == "2"


def test_a_mig_instance_is_pinned_by_uuid() -> None:
    """CUDA counts GPUs, not instances; an index would be the whole GPU or another one."""
    devices = (gpu(0, "MIG-a"), gpu(0, "MIG-b"))

    assert built(devices, gpus=["MIG-b"]).env["CUDA_VISIBLE_DEVICES"] == "MIG-b"


def kv_config(command: LaunchCommand) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    return told


def test_kv_transfer_settings_are_passed_in_the_format_of_vllm() -> None:
    command = built(
        gpus=[0, 1],
        kv_transfer={
            "connector": "NixlConnector",
            "role": "kv_producer",
            "side_channel_port": 5600,
            "buffer_device": "cpu",
            "extra_config": {"kv_lease_duration": 120},
        },
    )

    assert kv_config(command) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": 120},
    }
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_the_kv_role_follows_the_worker_s_role() -> None:
    transfer = {"connector": "ExampleConnector"}
    config = node(
        worker("p", role="prefill", port=1, kv_transfer=transfer),
        worker("d", role="decode", port=2, kv_transfer=transfer),
        worker("m", role="mixed", port=3, kv_transfer=transfer),
    )
    layout = place(config, GPUS)
    commands = [
        build(w, layout.of(w.name), steps_socket=SOCKET, engine_side_folder=ENGINE_SIDE)
        for w in config.workers
    ]

    assert [kv_config(command)["kv_role"] for command in commands] == [
        "kv_producer",
        "kv_consumer",
        "kv_both",
    ]
    assert not [name for c in commands for name in c.env if "SIDE_CHANNEL" in name]


def test_a_file_may_choose_the_side_channel_s_host() -> None:
    command = built(
        env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7"}, kv_transfer={"connector": "NixlConnector"}
    )

    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"


def test_an_engine_and_its_side_channel_listen_on_the_configured_host() -> None:
    command = built(host="10.0.0.7", kv_transfer={"connector": "NixlConnector"})

    assert command.argv[command.argv.index("--host") + 1] == "10.0.0.7"
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"


def test_the_mooncake_bootstrap_port_is_set_for_prefill_only() -> None:
    transfer = {"connector": "MooncakeConnector", "side_channel_port": 9000}
    commands = [
        built(role=role, kv_transfer=transfer, peers="elsewhere", host="10.0.0.7")
        for role in ("prefill", "decode")
    ]

    assert [c.env.get("VLLM_MOONCAKE_BOOTSTRAP_PORT") for c in commands] == ["9000", None]
    assert not [name for c in commands for name in c.env if "NIXL" in name]


def test_our_plugin_comes_before_the_worker_s_own_path() -> None:
    assert built(env={"PYTHONPATH": "/a:/b"}).env["PYTHONPATH"] == "/lib/inside_engine:/a:/b"


def test_our_plugin_is_added_to_the_plugins_that_a_file_allows() -> None:
    def allowed(plugins: str) -> str:
        return built(env={"VLLM_PLUGINS": plugins}).env["VLLM_PLUGINS"]

    assert allowed("theirs") == "theirs,disagg_steps"
    assert allowed("disagg_steps,theirs") == "disagg_steps,theirs"
    assert allowed("") == "disagg_steps"


def test_a_stand_in_runs_in_our_own_interpreter() -> None:
    simulated = tuple(Device(f"GPU-sim-{i}", i, "Simulated GPU", f"sim{i}") for i in range(4))

    command = built(simulated, engine="standin", role="mixed", gpus=[1, 3], args=["--costs", "{}"])

    assert command.argv == (
        *(sys.executable, "-m", "disagg_cluster.demo.standin", "--name", "mixed-0"),
        *("--role", "mixed", "--model", "org/model", "--host", "127.0.0.1", "--port", "8100"),
        *("--gpus", "1,3", "--sim-dir", "/run/n/sim", "--costs", "{}"),
    )
    assert command.env == {
        "PYTHONPATH": "/lib/inside_engine",
        "DISAGG_STEPS_SOCKET": "/run/n/mixed-0.sock",
    }


def test_a_stand_in_on_a_cpu_simulates_no_gpu() -> None:
    command = built(None, engine="standin", gpus=0)

    assert command.argv[command.argv.index("--gpus") + 1] == ""


def test_a_child_inherits_neither_service_manager_nor_disagg_variables() -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/root",
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "7",
        "LISTEN_FDNAMES": "x",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "7",
        "CREDENTIALS_DIRECTORY": "/run/credentials",
        "DISAGG_PASSWORD": "secret",
        "_DISAGG_NODE_COMPLETE": "bash_source",
    }

    child = child_environment(base, {"A": "b", "HOME": "/home/engine", "DISAGG_STEPS_SOCKET": "s"})

    assert child == {
        "PATH": "/bin",
        "HOME": "/home/engine",
        "A": "b",
        "DISAGG_STEPS_SOCKET": "s",
    }


def test_an_inherited_pythonpath_comes_after_the_childs_own() -> None:
    assert child_environment({"PYTHONPATH": "/src"}, {"PYTHONPATH": "/ours:/own"}) == {
        "PYTHONPATH": "/ours:/own:/src"
    }


def test_our_plugin_is_added_to_inherited_plugins_too() -> None:
    assert child_environment({"VLLM_PLUGINS": "theirs"}, {}) == {
        "VLLM_PLUGINS": "theirs,disagg_steps"
    }


def test_sglang_prefill_is_started_with_all_settings_of_the_node_file() -> None:
    command = built(
        peers="elsewhere",
        engine="sglang",
        role="prefill",
        gpus=[2, 3],
        model="/models/m",
        served_model_name="m",
        python="/venv/bin/python",
        host="10.0.0.7",
        args=["--mem-fraction-static", "0.8"],
        env={"HF_HUB_OFFLINE": "1"},
        kv_transfer={"connector": "NixlConnector", "side_channel_port": 8998},
    )

    assert command.argv == (
        *("/venv/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "/models/m", "--served-model-name", "m"),
        *("--host", "10.0.0.7", "--port", "8100", "--tp-size", "2", "--enable-metrics"),
        *("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"),
        *("--disaggregation-bootstrap-port", "8998", "--mem-fraction-static", "0.8"),
    )
    assert command.env == {
        "HF_HUB_OFFLINE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }


def test_sglang_decode_uses_the_transfer_backend_of_the_connector() -> None:
    command = built(
        peers="elsewhere",
        engine="sglang",
        role="decode",
        host="10.0.0.8",
        kv_transfer={"connector": "MooncakeConnector"},
    )

    assert command.argv[11:] == (
        *("--tp-size", "1", "--enable-metrics", "--disaggregation-mode", "decode"),
        *("--disaggregation-transfer-backend", "mooncake"),
    )


def test_sglang_mixed_and_encode_get_no_disaggregation_arguments() -> None:
    mixed, encode = built(engine="sglang"), built(engine="sglang", role="encode")

    assert mixed.argv[-3:] == ("--tp-size", "1", "--enable-metrics")
    assert encode.argv[-4:] == ("--tp-size", "1", "--enable-metrics", "--encoder-only")


def test_a_file_may_enable_sglang_health_probes_that_generate_a_token() -> None:
    asked = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "true"}

    assert built(engine="sglang", env=asked).env.items() >= asked.items()


@pytest.mark.parametrize(
    ("connector", "backend"),
    [
        ("NixlConnector", "nixl"),
        ("MooncakeConnector", "mooncake"),
        ("mooncake_tcp", "mooncake_tcp"),
        ("LMCacheConnector", None),
    ],
)
def test_a_connector_maps_to_an_sglang_transfer_backend(
    connector: str, backend: str | None
) -> None:
    assert transfer_backend(connector) == backend
