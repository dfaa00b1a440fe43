"""Node files of any size: what is refused for it, and that work grows with a file, not faster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile import ELSEWHERE, load, messages, parse
from disagg_cluster.nodefile.yaml_positions import MOST_BYTES

KV = "kv_transfer: {connector: NixlConnector, side_channel_port: %d}"
ENGINE = "{name: w-%d, role: %s, model: m/x, port: %d, gpus: 1, host: 10.0.0.1, %s}"


def workers(lines: list[str], top: str = "") -> str:
    return top + "workers:\n" + "".join(f"  - {line}\n" for line in lines)


def fine(count: int) -> str:
    roles = ("prefill", "decode")
    return workers(
        [
            ENGINE % (n, roles[n % 2], 1000 + n, KV % (20_000 + n)) + f" # worker {n}"
            for n in range(count)
        ],
        "peers: elsewhere\n",
    )


def named_gpus(count: int) -> str:
    return workers(
        [
            f"{{name: w-{n}, role: mixed, model: m, port: {n + 1}, gpus: [{n}]}}"
            for n in range(count)
        ]
    )


def listed(count: int) -> str:
    endpoints = "".join(f"    - {{url: 'http://127.0.0.1:{n + 1}'}}\n" for n in range(count))
    return named_gpus(count) + f"attach:\n  endpoints:\n{endpoints}"


def all_alike(count: int) -> str:
    """The same name, port and GPU in each."""
    return workers([ENGINE % (1, "prefill", 8000, KV % 5000)] * count)


def all_misshapen(count: int) -> str:
    return workers([f"{{name: w-{n}, rol: mixed, port: x, gpu: 1}}" for n in range(count)])


def no_such_gpus(count: int) -> str:
    wrong = [
        f"{{name: w-{n}, role: mixed, model: m, port: 1, gpus: [{n}, 1, 1], args: [--port, '1']}}"
        for n in range(count)
    ]
    return workers(wrong, "devices: sim\nsim_devices: 8\n")


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called, and generators resumed, while it works."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "text_of", [fine, named_gpus, listed, all_alike, all_misshapen, no_such_gpus]
)
def test_the_work_of_a_check_is_linear_in_the_number_of_workers(
    text_of: Callable[[int], str], tmp_path: Path
) -> None:
    """From the text of the file to the whole output of `config check`."""

    def check(count: int) -> int:
        path = tmp_path / f"{count}.yaml"
        path.write_text(text_of(count), encoding="utf-8")
        arguments = ["config", "check", "--elsewhere", str(path)]
        return calls_in(lambda: CliRunner().invoke(main, arguments))

    check(2)  # what is done once is done now
    small, medium, large = (check(count) for count in (30, 60, 90))

    assert large - medium < 1.005 * (medium - small)


def test_a_file_of_three_thousand_workers_is_read(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(fine(3000), encoding="utf-8")

    assert len(load(tmp_path / "node.yaml", ELSEWHERE).workers) == 3000


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        load(path)
    return refused.value.problems[0].message


def test_a_file_larger_than_any_node_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("devices: cpu\n" + "#" * MOST_BYTES, encoding="utf-8")

    assert refusal(path) == "cannot be read: larger than 1000000 bytes"


def test_devices_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert refusal(Path("/dev/zero")) == "cannot be read: it is no regular file"
    assert refusal(tmp_path / "pipe") == "cannot be read: it is no regular file"
    assert refusal(tmp_path) == "cannot be read: Is a directory"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 900_000, id="lists"),
        pytest.param("- " * 400_000, id="lists by indentation"),
        pytest.param("{" * 900_000, id="mappings"),
        pytest.param("- a\n" * 200_000, id="items"),
        pytest.param(
            "a0: &a0 {x: 1}\n"
            + "".join(
                f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
            ),
            id="merged keys",
        ),
        pytest.param("a: &a [*a]", id="a list that holds itself"),
    ],
)
def test_deep_or_large_yaml_is_refused_before_construction(text: str) -> None:
    with pytest.raises(ConfigError, match="too large or nested too deeply"):
        parse(text, "test")


def test_suggestions_and_reported_problems_of_unknown_keys_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guessed: list[str] = []
    monkeypatch.setattr(messages, "nearest", lambda key, _known: guessed.append(key))
    with pytest.raises(ConfigError) as refused:
        parse("".join(f"unknown_key_{number}: 1\n" for number in range(3000)), "test")

    lines = str(refused.value).splitlines()
    assert len(guessed) == 100
    assert lines[0] == "test:1: unknown_key_0: unknown key"
    assert lines[-1] == f"… and {len(refused.value.problems) - 200} more"
    assert len(refused.value.problems) == 3000
    assert len(lines) <= 401


def test_a_misplaced_key_gets_its_hint_beyond_the_limit_of_suggestions() -> None:
    """The hint is looked up in a table of all keys, which is made once."""
    with pytest.raises(ConfigError) as refused:
        parse("".join(f"x{number}: 1\n" for number in range(150)) + "connector: a\n", "test")

    assert refused.value.problems[-1].hint == "it belongs in workers[].kv_transfer.connector"
