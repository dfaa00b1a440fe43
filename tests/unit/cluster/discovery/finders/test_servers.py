"""Which processes are engines' servers."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from disagg_cluster.discovery.finders.servers import (
    PartCache,
    engine_kind,
    find_servers,
    port_argument,
)
from disagg_cluster.host.processes.process_table import HostProcess, ancestors

VLLM = "python3 /venv/bin/vllm serve m --port 8000"


def table(*rows: tuple[int, int, str]) -> dict[int, HostProcess]:
    """Processes as (pid, parent, command line)."""
    return {
        pid: HostProcess(
            pid, parent, 1, shlex.split(text)[0].rsplit("/", 1)[-1], tuple(shlex.split(text))
        )
        for pid, parent, text in rows
    }


def found(*rows: tuple[int, int, str]) -> dict[int, tuple[str, set[int]]]:
    return {s.process.pid: (s.kind, set(s.pids)) for s in find_servers(table(*rows))}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (VLLM, "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("/opt/venv/bin/python3.11 -m sglang.launch_server --model-path m", "sglang"),
        ("python3 /usr/local/bin/trtllm-serve m", "trtllm"),
        ("python3 -m dynamo.vllm --model m", "dynamo"),
        ("python3 -m dynamo.mocker --model-path m", "dynamo"),
        ("/app/llm-d-inference-sim --port 8000", "engine"),
        ("python3 -m dynamo.frontend", ""),
        ("vllm-router --prefill http://a", ""),
        ("python3 /venv/bin/vllm bench serve", ""),
        ("docker run vllm/vllm-openai vllm serve m", ""),
        ("kubectl exec pod -- vllm serve m", ""),
        ("grep -r vllm serve", ""),
        ("vim vllm", ""),
        ("bash -c 'sleep 9; vllm serve m'", ""),
        ("VLLM::EngineCore", ""),
        ("python3 train.py", ""),
    ],
)
def test_only_servers_are_engines(text: str, kind: str) -> None:
    assert engine_kind(tuple(shlex.split(text))) == kind


def test_an_engine_includes_its_parts_and_forks() -> None:
    rows = [(1, 0, "init"), (10, 1, VLLM), (11, 10, "VLLM::EngineCore"), (12, 11, "VLLM::Worker")]
    rows += [(13, 10, VLLM), (20, 1, "bash")]

    assert found(*rows) == {10: ("vllm", {10, 11, 12, 13})}


def test_a_wrapper_is_not_the_engine_that_it_wraps() -> None:
    rows = [(10, 1, "python3 launch.py vllm serve"), (11, 10, VLLM), (12, 10, VLLM + " --x")]

    assert found(*rows) == {11: ("vllm", {11}), 12: ("vllm", {12})}


def test_an_engine_inside_an_unknown_program_is_found_by_its_parts() -> None:
    rows = [(10, 1, "python3 my_service.py"), (11, 10, "VLLM::EngineCore")]

    assert found(*rows) == {10: ("vllm", {10, 11})}


def test_the_shell_above_an_engine_s_part_is_not_its_server() -> None:
    rows = [(10, 1, "bash"), (11, 10, "VLLM::APIServer_0"), (12, 11, "VLLM::EngineCore")]

    assert found(*rows) == {11: ("vllm", {11, 12})}


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["--port", "81"], 81),
        (["--port=82"], 82),
        ([], 8000),
        (["--port", "many"], None),
        (["--port", "99999999999999"], None),
        (["--port", "000001" + "1" * 5000], None),
    ],
)
def test_the_port_is_the_configured_one(arguments: list[str], port: int | None) -> None:
    assert port_argument(("vllm", "serve", "m", *arguments), "vllm") == port


LAUNCH = "bash /usr/local/bin/trtllm-llmapi-launch trtllm-serve m --port 8000 --server_role CONTEXT"
RANK = "python3 -m tensorrt_llm.llmapi.mgmn_{}_node"
RAYLET = (
    "/venv/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/raylet "
    "--node_ip_address=10.0.0.2 --gcs-address=10.0.0.1:6379"
)


def followers(*rows: tuple[int, int, str]) -> dict[int, tuple[str, set[int], str]]:
    return {
        s.process.pid: (s.kind, set(s.pids), s.part.head)
        for s in find_servers(table(*rows))
        if s.part is not None
    }


def test_ranks_with_a_remote_server_form_one_follower() -> None:
    rows = [(9, 1, "slurmstepd: [7.0]"), (10, 9, LAUNCH), (11, 10, RANK.format("worker"))]
    rows += [(20, 9, LAUNCH), (21, 20, RANK.format("worker"))]

    [server] = find_servers(table(*rows))

    assert followers(*rows) == {11: ("trtllm", {11, 21}, "")}
    assert server.process.argv[:2] == ("trtllm-serve", "m")


def test_ranks_beside_their_server_belong_to_it() -> None:
    serve = "python3 /usr/bin/trtllm-serve m"
    rows = [(9, 1, "prted"), (10, 9, LAUNCH), (11, 10, RANK.format("leader")), (12, 10, LAUNCH)]
    rows += [(13, 12, serve), (20, 9, LAUNCH), (21, 20, RANK.format("worker"))]
    other = [(30, 1, serve)]

    assert found(*rows, *other) == {13: ("trtllm", {11, 13, 21}), 30: ("trtllm", {30})}
    assert followers(*rows, *other) == {}


def test_ray_workers_without_a_local_server_form_a_follower() -> None:
    rows = [(9, 1, RAYLET), (10, 9, "ray::RayWorkerWrapper.execute_method")]
    rows += [(11, 9, "ray::RayWorkerWrapper"), (12, 9, "VLLM::Worker_TP9"), (13, 9, "ray::IDLE")]

    assert followers(*rows) == {10: ("vllm", {10, 11, 12}, "10.0.0.1:6379")}


def test_ray_workers_belong_to_the_only_ray_server() -> None:
    rows = [(9, 1, RAYLET), (10, 9, "ray::RayWorkerWrapper")]
    server = (20, 1, VLLM + " --distributed-executor-backend ray")

    assert found(*rows, server, (30, 1, VLLM)) == {20: ("vllm", {10, 20}), 30: ("vllm", {30})}
    # With two candidates it is unknown, and nothing is guessed.
    assert found(*rows, server, (21, 1, server[2])) == {20: ("vllm", {20}), 21: ("vllm", {21})}


def test_workers_inside_a_ray_serve_replica_belong_to_its_engine() -> None:
    rows = [
        (9, 1, RAYLET),
        (10, 9, "ray::ServeReplica:app:LLMServer"),
        (11, 10, "VLLM::EngineCore"),
    ]
    rows += [(12, 11, "VLLM::Worker_TP0"), (13, 11, "VLLM::Worker_TP1")]

    assert found(*rows) == {11: ("vllm", {11, 12, 13})}
    assert followers(*rows) == {}


def test_a_servers_part_depends_on_arguments_and_environment() -> None:
    parts = PartCache()
    [server] = find_servers(table((10, 1, "python3 -m dynamo.vllm --model m --nnodes 2")))
    answers = []
    for said in ("0", "1", "1", "0"):
        parts.begin()
        part = parts.of(server, {"DYN_VLLM_HEADLESS": said})
        answers.append(part is not None and part.follows)

    assert answers == [False, True, True, False]


def test_a_process_older_than_an_engine_is_no_child_of_it() -> None:
    """Its parent exited after the last scan, and the engine got that pid."""
    rows = table((10, 1, VLLM), (20, 10, "sleep 9"), (30, 10, "VLLM::EngineCore"))
    rows[10] = replace(rows[10], start_ticks=7)
    rows[30] = replace(rows[30], start_ticks=7)

    [server] = find_servers(rows)

    assert server.pids == {10, 30}
    assert [*ancestors(20, rows)] == []
    assert [*ancestors(30, rows)] == [rows[10]]
