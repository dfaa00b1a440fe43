from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.page_server import NoPage, page_server

DATA = Path(__file__).parents[4] / "data"
MODELS = b'{"data": [{"id": "tiny", "max_model_len": 1024}]}'
IDLE = b"""\
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
"""
BUSY = IDLE.replace(b"0.0\n", b"3.0\n", 1)
NODE = """\
devices: cpu
workers:
  - {name: prefill-0, role: mixed, model: m, port: 8100}
"""


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(each) for each in args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@contextmanager
def engine(page: bytes = IDLE, models: bytes = MODELS) -> Iterator[str]:
    def answer(path: str) -> bytes:
        told = {"/v1/models": models, "/metrics": page}.get(path)
        if told is None:
            raise NoPage
        return told

    with page_server(answer) as url:
        yield url


@pytest.mark.parametrize("command", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("page", "models", "code", "said"),
    [
        (BUSY, MODELS, 3, "it serves requests (3 running)"),
        (b"<html>", MODELS, 3, "no metrics page"),
        ((DATA / "vllm-router-0.1.17" / "router.prom").read_bytes(), MODELS, 1, "is a router"),
        (IDLE, b"<html>", 1, "no OpenAI API"),
        (IDLE, b'{"data": []}', 1, "serves no model"),
        (IDLE, b'{"data": [{"id": "a"}, {"id": "b"}]}', 2, "serves a, b: say which with --model"),
    ],
)
def test_a_target_that_is_not_an_idle_engine_is_refused_before_the_first_probe(
    command: str, page: bytes, models: bytes, code: int, said: str
) -> None:
    """The server answers 503 to a POST, so a probe would be reported as that error."""
    with engine(page, models) as url:
        found, out, err = run("tune", command, "--engine", url)

    assert (found, out) == (code, "")
    assert said in err


def test_an_unreachable_engine_is_reported() -> None:
    with engine() as url:
        pass

    code, out, err = run("tune", "prefill", "--engine", url)

    assert (code, out) == (1, "")
    assert f"{url}/v1/models: Connection refused: --engine takes" in err
    assert "disagg-node status" in err


def test_a_model_that_the_engine_does_not_serve_is_reported() -> None:
    with engine() as url:
        code, _, err = run("tune", "prefill", "--engine", url, "--model", "qwen")

    assert code == 2
    assert "does not serve 'qwen': it serves tiny" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt-tokens", "0"), "from 1 to"),
        (("--prompt-tokens", "512,many"), "are no lengths"),
        (("--prompt-tokens", "1024"), "at most 1023 tokens"),
        (("--largest", "1"), "--largest"),
        (("--plot", "p.pdf"), "a .svg or a .png file"),
        (("--profile", "/nowhere/p.json"), "/nowhere is no folder"),
        (("--header", "nonsense"), "is no header"),
    ],
)
def test_invalid_options_are_refused_before_the_first_probe(
    options: tuple[str, ...], said: str
) -> None:
    with engine() as url:
        code, out, err = run("tune", "prefill", "--engine", url, *options)

    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("itl", ["0ms", "50", "-1s", "nan", "61s"])
def test_an_invalid_latency_target_is_refused(itl: str) -> None:
    code, _, err = run("tune", "decode", "--engine", "http://127.0.0.1:1", f"--itl={itl}")

    assert code == 2
    assert "is no such time: give 50ms" in err


def test_a_worker_name_without_a_daemon_is_refused(tmp_path: Path) -> None:
    code, _, err = run("tune", "prefill", "--engine", "prefill-0", "--run-dir", tmp_path)

    assert code == 4
    assert "no daemon answers" in err


def profile(path: Path) -> None:
    steps = [{"size": 1, "seconds": 0.01}]
    decode = {"target_seconds": 0.05, "contexts": [{"context_tokens": 9, "steps": steps}]}
    value = {"disagg_node_profile": 1, "model_name": "another", "decode": decode}
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("option", "write", "said"),
    [
        ("--profile", profile, "the profile is of another"),
        ("--profile", lambda path: path.write_text("{"), "not valid YAML"),
        ("--write", lambda path: path.write_text("workers: 3"), "workers"),
        ("--write", lambda path: path.write_text(NODE), "its workers are prefill-0"),
    ],
)
def test_an_unsuitable_output_file_is_refused_unchanged_before_the_first_probe(
    tmp_path: Path, option: str, write: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "file"
    write(path)
    before = path.read_bytes()

    with engine() as url:
        code, _, err = run("tune", "prefill", "--engine", url, option, path)

    assert code == 2
    assert said in err
    assert path.read_bytes() == before


@pytest.mark.parametrize(("option", "name"), [("--profile", "p.json"), ("--write", "node.yaml")])
def test_an_unwritable_output_file_is_reported_before_the_first_probe(
    option: str, name: str, tmp_path: Path
) -> None:
    """The server answers 503 to a POST, so a probe would be reported as that error."""
    path = tmp_path / name
    (tmp_path / f".{name}.part").mkdir()
    with engine() as url:
        if option == "--write":
            path.write_text(NODE.replace("8100", url.rpartition(":")[2]))
        code, out, err = run("tune", "prefill", "--engine", url, option, path)

    assert (code, out) == (1, "")
    assert err == f"disagg-node: cannot write {path}: Is a directory\n"
