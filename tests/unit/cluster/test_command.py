from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from disagg_cluster.command import Command, build, child_environment
from disagg_cluster.layout import place
from disagg_exporter.model import Device
from support.node_files import gpu, node, worker

SOCKET = Path("/run/n/mixed-0.sock")
ENGINE_SIDE = Path("/lib/inside_engine")
GPUS = tuple(gpu(index) for index in range(4))


def built(devices: tuple[Device, ...] | None = GPUS, name: str = "mixed-0", **keys: Any) -> Command:
    config = node(worker(name, **keys))
    return build(
        config.workers[0],
        place(config, devices).placements[0],
        steps_socket=SOCKET,
        engine_side_folder=ENGINE_SIDE,
    )


def test_vllm_is_started_with_everything_that_the_file_says() -> None:
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


def test_an_instance_of_a_divided_gpu_is_pinned_by_uuid() -> None:
    """CUDA counts GPUs, not instances; an index would be the whole GPU or another one."""
    devices = (gpu(0, "MIG-a"), gpu(0, "MIG-b"))

    assert built(devices, gpus=["MIG-b"]).env["CUDA_VISIBLE_DEVICES"] == "MIG-b"


def kv_config(command: Command) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    return told


def test_the_kv_transfer_is_told_in_the_engine_s_own_words() -> None:
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
        *("--role", "mixed", "--port", "8100", "--model", "org/model", "--gpus", "1,3"),
        *("--sim-dir", "/run/n/sim", "--costs", "{}"),
    )
    assert command.env == {
        "PYTHONPATH": "/lib/inside_engine",
        "DISAGG_STEPS_SOCKET": "/run/n/mixed-0.sock",
    }


def test_a_stand_in_on_a_cpu_plays_no_gpu() -> None:
    command = built(None, engine="standin", gpus=0)

    assert command.argv[command.argv.index("--gpus") + 1] == ""


def test_a_child_inherits_neither_the_service_manager_s_channels_nor_what_is_ours() -> None:
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


def test_an_inherited_search_path_stays_behind_the_child_s_own() -> None:
    assert child_environment({"PYTHONPATH": "/src"}, {"PYTHONPATH": "/ours:/own"}) == {
        "PYTHONPATH": "/ours:/own:/src"
    }


def test_our_plugin_is_added_to_inherited_plugins_too() -> None:
    assert child_environment({"VLLM_PLUGINS": "theirs"}, {}) == {
        "VLLM_PLUGINS": "theirs,disagg_steps"
    }
