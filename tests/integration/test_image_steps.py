"""The steps of the images, outside Docker, of which there is none here.

What the RUN lines do is done for real in a folder: the wheel is built, an environment is made of
it, and the daemon from that environment answers the image's own health check. Not tried are the
base images themselves, so neither vLLM's image nor what its Python brings. The steps of `launch`
are those of `attach` (tests/unit/test_dockerfile.py) and the router, which `make test` installs
anyway.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from support.children import free_port
from support.dockerfile import Image, stages


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What the steps of `attach` leave, its parts from the earlier stages included."""
    image = Image(tmp_path_factory.mktemp("image"))
    for name in ("wheel", "environment", "attach"):
        image.carry_out(stages()[name])
    return image


def command(image: Image, *argv: str) -> list[str]:
    return [str(image.root / "opt" / "disagg-node" / "bin" / argv[0]), *argv[1:]]


def test_the_daemon_starts_in_an_environment_of_its_own(image: Image) -> None:
    answer = subprocess.run(
        command(image, "disagg-node", "--help"), capture_output=True, text=True, check=True, cwd="/"
    )

    assert "Usage: disagg-node" in answer.stdout
    where = "import disagg_cluster, grpc, sys; print(disagg_cluster.__file__, 'pip' in sys.modules)"
    told = subprocess.run(
        command(image, "python", "-c", where), capture_output=True, text=True, check=True, cwd="/"
    )
    assert told.stdout.startswith(str(image.root / "opt" / "disagg-node"))


def test_the_environment_contains_only_pinned_packages(image: Image) -> None:
    """It contains neither pip nor build tools."""
    listing = (
        "import importlib.metadata as m\n"
        "for d in m.distributions(): print(d.name.replace('_', '-').lower(), d.version)"
    )
    told = subprocess.run(
        command(image, "python", "-c", listing), capture_output=True, text=True, check=True, cwd="/"
    )

    held = dict(line.split() for line in told.stdout.splitlines())
    text = (image.root / "wheels" / "Dockerfile.constraints").read_text(encoding="utf-8")
    pins = [line.split("==") for line in text.splitlines() if "==" in line]
    pinned = {name.replace("_", "-").lower(): version for name, version in pins}
    assert held.pop("disagg-node")
    assert held.items() <= pinned.items()
    assert {"pip", "hatchling"} & held.keys() == set()


def test_the_health_check_succeeds_only_if_a_daemon_answers(image: Image, tmp_path: Path) -> None:
    port = free_port()
    node = tmp_path / "node.yaml"
    node.write_text(
        f"devices: cpu\nrun_dir: {tmp_path / 'run'}\nlisten: {{metrics: '127.0.0.1:{port}'}}\n",
        encoding="utf-8",
    )
    check = [part.replace("9847", str(port)) for part in stages()["attach"].healthcheck()]

    def healthy() -> bool:
        answer = subprocess.run(
            command(image, *check), stderr=subprocess.DEVNULL, check=False, cwd="/"
        )
        return answer.returncode == 0

    assert not healthy()
    with subprocess.Popen(
        command(image, "disagg-node", "start", "--config", str(node), "--quiet"),
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as daemon:
        try:
            assert daemon.stderr is not None
            while b"metrics page:" not in (line := daemon.stderr.readline()):
                assert line, "the daemon ended before it served"
            deadline = time.monotonic() + 30
            while not healthy():
                assert time.monotonic() < deadline
        finally:
            daemon.terminate()
            daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    assert not healthy()
