"""The Dockerfile as values, and its steps run in a folder, without Docker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word, and the rest of its lines as one."""

    word: str
    rest: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, its base, and what is done in it."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[str]:
        """Return the arguments of each instruction of a kind."""
        return [one.rest for one in self.instructions if one.word == word]

    def environment(self) -> dict[str, str]:
        """Return the variables of its ENV lines."""
        return dict(pair.split("=", 1) for line in self.all("ENV") for pair in line.split())

    def arguments(self) -> dict[str, str]:
        """The defaults of its ARG lines."""
        return dict(line.split("=", 1) for line in self.all("ARG"))

    def healthcheck(self) -> list[str]:
        """The command of its HEALTHCHECK."""
        [line] = self.all("HEALTHCHECK")
        return list(json.loads(line.partition("CMD ")[2]))


def read(text: str) -> dict[str, Stage]:
    """Return the stages by name; the one named "" holds the lines before the first FROM."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    found = [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]
    stages: dict[str, Stage] = {}
    name, base, parts = "", "", list[Instruction]()
    for one in [*found, Instruction("FROM", "end AS end")]:
        if one.word != "FROM":
            parts.append(one)
            continue
        stages[name] = Stage(name, base, tuple(parts))
        base, _, name = one.rest.partition(" AS ")
        parts = []
    return stages


def stages() -> dict[str, Stage]:
    """Return the stages of our Dockerfile."""
    return read(DOCKERFILE.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Image:
    """A folder in which the steps of stages build the content of an image."""

    root: Path

    def carry_out(self, stage: Stage) -> None:
        """Run the COPY and RUN lines of a stage, with the root's folders in place of `/`."""
        here = "/"
        for one in stage.instructions:
            if one.word == "WORKDIR":
                here = one.rest
                self._inside(here).mkdir(parents=True, exist_ok=True)
            elif one.word == "COPY":
                self._copy(one.rest.split(), here)
            elif one.word == "RUN":
                self._run(one.rest, here)

    def _copy(self, words: list[str], here: str) -> None:
        if words[0].startswith("--from="):
            # All stages share the folder, so it is there already.
            assert self._inside(words[1]).exists()
            return
        *sources, target = words
        to = self._inside(str(Path(here, target)))
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, to)

    def _run(self, command: str, here: str) -> None:
        moved = re.sub(r"(?<![\w./])/(src|wheels|opt|home)\b", rf"{self.root}/\1", command)
        # Steps that keep layers small and starts quick are skipped here, as they take a while.
        moved = moved.replace(" --no-cache-dir", "")
        quick = {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        answer = subprocess.run(
            ["sh", "-c", moved],
            cwd=self._inside(here),
            env={**_plain_environment(), **quick, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{moved}\n{answer.stdout}{answer.stderr}"

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _plain_environment() -> Mapping[str, str]:
    """Return our environment without variables that make Python import from the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
