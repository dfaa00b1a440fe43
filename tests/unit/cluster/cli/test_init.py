from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.deploy.first_node_file import MachineFindings

FOUND = MachineFindings("gpu-7", ("H100",), (("vllm", "/venv/bin/python"),), ("org/model",))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which something is found."""
    monkeypatch.setattr("disagg_cluster.cli.init._found", lambda: FOUND)


def run(*arguments: str, command: str = "init") -> tuple[int, str]:
    result = CliRunner().invoke(main, [command, *arguments], prog_name="disagg-node")
    return result.exit_code, result.stdout


def test_json_has_the_findings_and_the_path_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"

    code, out = run("--json", "-o", str(file))

    assert code == 0
    assert json.loads(out) == {
        "file": str(file),
        "node": "gpu-7",
        "gpus": ["H100"],
        "pythons": [["vllm", "/venv/bin/python"]],
        "models": ["org/model"],
    }
    assert "org/model" in file.read_text()


def test_a_name_too_long_for_a_file_is_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["init", "-o", str(tmp_path / ("x" * 300))])

    assert result.exit_code == 1
    assert "File name too long" in result.stderr


def test_json_with_the_file_on_stdout_is_bad_usage() -> None:
    assert run("--json", "-o", "-") == (2, "")


def test_options_after_a_command_belong_to_that_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run_first(command: tuple[str, ...]) -> None:
        ran.append(command)
        raise SystemExit(0)

    monkeypatch.setattr("disagg_cluster.cli.init._be_first_process", run_first)
    for separator in ((), ("--",)):
        told = (*separator, "disagg-node", "start", "--json")
        assert run(*told, command="container-init") == (0, "")

    assert ran == [("disagg-node", "start", "--json")] * 2


def test_init_takes_no_command_to_run(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"

    assert run("-o", str(file), "--", "disagg-node", "start") == (2, "")

    assert not file.exists()
