"""A new user's first steps: the commands in README exist, and its node file is valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
[NODE_FILE] = [text for kind, text in BLOCKS if kind == "yaml"]
TYPED = [
    line.partition("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
]
SAID = re.findall(r"`((?:make|disagg-node|docker|helm) [^`]*)`", README)
TARGETS = sorted({said.split()[1] for said in SAID if said.startswith("make ")})
COMMANDS = sorted({said for said in (*SAID, *TYPED) if said.startswith("disagg-node ")})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with README's node file, and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.yaml").write_text(NODE_FILE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_in_the_readme_is_in_the_makefile(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_in_the_readme_accepts_its_options(words: str) -> None:
    """Commands are parsed unchanged, not run: `--help` ends them after parsing the options."""
    _, *arguments = shlex.split(words)

    done = CliRunner().invoke(main, [*arguments, "--help"])

    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage: ")
    told = [word for word in arguments if word.startswith("-")]
    assert [option for option in told if option not in done.output] == []


@pytest.mark.parametrize("stage", re.findall(r"--target (\w+)", README))
def test_an_image_in_the_readme_is_a_stage_of_the_dockerfile(stage: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert f" AS {stage}\n" in dockerfile


@pytest.mark.parametrize("words", [s for s in SAID if s.startswith(("docker ", "helm "))])
def test_a_path_given_to_docker_or_helm_exists(words: str) -> None:
    paths = [word for word in shlex.split(words) if re.match(r"(examples|helm)/", word)]

    assert paths or words.endswith(" .")
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.usefixtures("here")
def test_the_node_file_is_valid_with_elsewhere() -> None:
    done = CliRunner().invoke(main, ["config", "check", "--elsewhere", "node.yaml"])

    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[:4] for line in lines if line.startswith(("prefill-0 ", "decode-0 "))] == [
        ["prefill-0", "prefill", "vllm", "0,1,2,3"],
        ["decode-0", "decode", "vllm", "4,5,6,7"],
    ]


@pytest.mark.usefixtures("here")
def test_the_node_file_is_refused_here_with_the_missing_module() -> None:
    done = CliRunner().invoke(main, ["config", "check", "node.yaml"])

    assert done.exit_code == 2
    assert "has no module vllm" in click.unstyle(done.output)
    assert "give the interpreter of the environment that holds vllm" in done.output
