"""From a worker of the node file to what its supervisor needs."""

import logging
import os
import signal
from pathlib import Path

import pytest

from disagg_cluster.config import HealthProbes, IntervalsConfig, NodeConfig
from disagg_cluster.config.layout import place
from disagg_cluster.host.run_dir.layout import RunFolder, default_run_dir, older_run_dirs
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.launch.worker_specs import api_key, in_role, spec_of, specs_of
from disagg_cluster.lifecycle.state import Lifecycle, Presence, WorkerState
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
from disagg_cluster.supervisor.process.child_process import start
from disagg_exporter.model import Role
from support.children import PYTHON, wait_readable


def config(**worker: object) -> NodeConfig:
    file = {"name": "w", "role": "mixed", "model": "tiny", "port": 8100} | worker
    return from_mapping({"devices": "cpu", "workers": [file]}, "node.yaml")


def test_a_spec_has_the_command_target_policy_and_tag_of_its_worker(tmp_path: Path) -> None:
    node = config(
        deadlines={"stop_seconds": 3}, restart={"hang_probes": 2}, args=["--api-key", "k"]
    )
    layout = place(node, None)

    spec = specs_of(node, layout, RunFolder(tmp_path), {})["w"]

    assert (spec.name, spec.role, spec.gpus) == ("w", Role.MIXED, layout.of("w").gpus)
    assert spec.log_path == tmp_path / "logs" / "w.log"
    assert spec.command.env["DISAGG_STEPS_SOCKET"] == str(tmp_path / "w.sock")
    assert (spec.target.port, spec.target.served_model_name) == (8100, "tiny")
    assert spec.target.api_key == "k"
    assert (spec.policy.stop_seconds, spec.policy.hang_probes) == (3, 2)
    assert spec.tag.url == "http://127.0.0.1:8100"


def test_a_worker_gets_the_arguments_of_its_current_role(tmp_path: Path) -> None:
    of_role = {"prefill": ["--max-num-seqs", "4"], "decode": ["--max-num-seqs", "256"]}
    args = ["--seed", "1", "--max-num-seqs", "8"]
    at = {"host": "10.0.0.1", "port": 8100}
    file = {"name": "w", "role": "prefill", "model": "m", "args": args, **at}
    kv = {"kv_transfer": {"connector": "NixlConnector"}, "role_args": of_role}
    mapping = {"devices": "cpu", "peers": "elsewhere", "workers": [file | kv]}
    node = from_mapping(mapping, "node.yaml")
    [worker] = node.workers
    layout, folder = place(node, None), RunFolder(tmp_path)

    given = {
        role: spec_of(in_role(worker, role), node, layout, folder, {}).command.argv[-6:]
        for role in (Role.PREFILL, Role.DECODE)
    }

    usual = ("--seed", "1", "--max-num-seqs", "8")
    assert given[Role.PREFILL] == (*usual, "--max-num-seqs", "4")
    assert given[Role.DECODE] == (*usual, "--max-num-seqs", "256")
    assert in_role(worker, Role.DECODE).args == worker.args


def test_a_workers_health_settings_override_the_nodes(tmp_path: Path) -> None:
    node = config(health={"timeout_seconds": 30}).model_copy(
        update={
            "health": HealthProbes(timeout_seconds=4.0, grace_seconds=60.0),
            "intervals": IntervalsConfig(health_seconds=5.0),
        }
    )

    spec = specs_of(node, place(node, None), RunFolder(tmp_path), {})["w"]

    assert spec.target.timeout_seconds == 30
    assert (spec.policy.hang_grace_seconds, spec.policy.health_seconds) == (60, 5)


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        ([], 1),
        (["--data-parallel-size", "2"], 2),
        (["-dp=2"], 2),
        (["--data-parallel-size=4", "--data-parallel-size-local=2"], 1),
        (["--data-parallel-size=2", "-dpr", "1"], 1),
        (["--data-parallel-size=2", "--device-ids", "3,2"], 1),
    ],
)
def test_the_number_of_ranks_follows_the_data_parallel_arguments(
    tmp_path: Path, arguments: list[str], ranks: int
) -> None:
    node = config(args=arguments)

    spec = specs_of(node, place(node, None), RunFolder(tmp_path), {})["w"]

    assert spec.tag.ranks == ranks


@pytest.mark.parametrize(
    ("worker", "inherited", "key"),
    [
        ({}, {}, ""),
        ({"args": ["--api-key", "a", "--seed", "1"]}, {"VLLM_API_KEY": "c"}, "a"),
        ({"args": ["--api-key=a=b"]}, {}, "a=b"),
        ({"args": ["--api-key"]}, {}, ""),
        ({"env": {"VLLM_API_KEY": "b"}}, {"VLLM_API_KEY": "c"}, "b"),
        ({}, {"VLLM_API_KEY": "c"}, "c"),
        ({"engine": "sglang"}, {"VLLM_API_KEY": "c"}, ""),
    ],
)
def test_the_api_key_is_the_one_that_the_engine_uses(
    worker: dict[str, object], inherited: dict[str, str], key: str
) -> None:
    assert api_key(config(**worker).workers[0], inherited) == key


@pytest.mark.parametrize("key", ["k\r\nHost: x", "k\n", "\N{SNOWMAN}", "\udcff"])
def test_an_api_key_that_no_header_can_carry_is_ignored(key: str) -> None:
    """A probe without a key gets a 401, which is enough if the socket is the worker's own."""
    assert api_key(config(engine="vllm").workers[0], {"VLLM_API_KEY": key}) == ""


@pytest.mark.parametrize(
    ("environ", "uid", "folder"),
    [
        ({"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/disagg-node"),
        ({"HOME": "/home/a"}, 7, "/home/a/.local/state/disagg-node/gpu-7"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 7, "/s/disagg-node/gpu-7"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "s"}, 7, "/home/a/.local/state/disagg-node/gpu-7"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/var/tmp/disagg-node-7"),
    ],
)
def test_the_default_run_folder_outlives_the_login_session(
    environ: dict[str, str], uid: int, folder: str
) -> None:
    assert default_run_dir(environ, uid, "gpu-7.cluster.local") == Path(folder)


def test_an_older_folder_stays_in_use_while_a_daemon_runs_there(tmp_path: Path) -> None:
    uid, user = 7, {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "session")}
    usual = default_run_dir(user, uid)
    session, cache = older_run_dirs(user, uid)
    assert (session, cache) == (
        tmp_path / "session" / "disagg-node",
        tmp_path / ".cache" / "disagg-node",
    )

    assert usual_run_dir(user, uid) == usual
    with RunLock(RunFolder(cache).lock):
        assert usual_run_dir(user, uid) == cache
        with RunLock(RunFolder(usual).lock):
            assert usual_run_dir(user, uid) == usual
    assert usual_run_dir(user, uid) == usual


def test_an_older_folder_stays_in_use_while_engines_of_its_journal_run(tmp_path: Path) -> None:
    user = {"HOME": str(tmp_path)}
    [cache] = older_run_dirs(user, 7)
    folder = RunFolder(cache)
    child = start([*PYTHON, "import signal; signal.pause()"], dict(os.environ), folder.log("w"))
    try:
        [spec] = specs_of(config(), place(config(), None), folder, {}).values()
        entry = spec.entry(child.start_ticks, 0.0)
        life = Lifecycle(WorkerState.READY, Presence.RUNNING, generation=1)
        entry = entry.model_copy(update={"life": life, "pid": child.pid})
        Journal(folder.journal, logging.getLogger("test")).write([entry])
        assert usual_run_dir(user, 7) == cache
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()
    assert usual_run_dir(user, 7) == default_run_dir(user, 7)
