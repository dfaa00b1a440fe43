"""Start scripts: the programs they run, and the variables of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.roles.command_line.shell_words import (
    MAX_COMMANDS,
    MAX_SUBSHELLS,
    OPEN,
    commands,
)
from disagg_exporter.roles.evidence.types import Confidence, Markers, Verdict
from disagg_exporter.roles.judge import explain

PREFILL = """--kv-transfer-config '{"kv_role":"kv_producer"}'"""
ENGINE = f"vllm serve m {PREFILL}"
ROUTER = "python -m vllm_router.launch_router --prefill http://a:1 --decode http://b:1"
MODE = "DYN_VLLM_DISAGGREGATION_MODE"
MORE = {"VLLM_ADDITIONAL_ARGS": PREFILL}


def script(text: str, **env: str) -> Verdict:
    return explain(Markers(argv=("sh", "-c", text), env=env))


@pytest.mark.parametrize(
    "text",
    [
        f"({ENGINE} &); {ROUTER}",
        f"( {ENGINE} ) & {ROUTER}",
        f"(({ENGINE}) & {ROUTER})",
        f"{ENGINE} & {ROUTER}",
        f"{ENGINE} & {ROUTER}; wait",
        f"{{ {ENGINE}; }} & exec {ROUTER}",
        f"{ROUTER} & exec {ENGINE}",
        f"cd /app && (export A=1; exec {ENGINE}) & {ROUTER}",
        f"trap 'kill 0' EXIT; {ENGINE} & {ROUTER}",
        f"run() {{ {ENGINE}; }}; run & {ROUTER}",
        f"if true; then {ENGINE} & fi; {ROUTER}",
        f"cat > /tmp/run.sh <<'EOF'\n{ENGINE}\nEOF\nbash /tmp/run.sh & {ROUTER}",
        f"bash <<EOF &\n{ENGINE}\nEOF\n{ROUTER}",
        f"nohup {ENGINE} > log 2>&1 & {ROUTER}",
    ],
)
def test_an_engine_beside_another_program_in_one_script_is_an_engine(text: str) -> None:
    verdict = script(text)

    assert verdict.is_engine
    assert verdict.answer == "prefill"


@pytest.mark.parametrize(
    "text",
    [
        f"echo starting {ENGINE}; {ROUTER}",
        f"cat <<EOF > /notes\n{ENGINE}\nEOF\n{ROUTER}",
        f"pgrep -f vllm serve || {ROUTER}",
        f"until ssh gpu-1 {ENGINE}; do sleep 1; done; {ROUTER}",
    ],
)
def test_a_router_that_only_names_an_engine_is_no_engine(text: str) -> None:
    assert not script(text).is_engine


@pytest.mark.parametrize(
    "argv",
    [
        ("tini", "--", "vllm", "serve", "m"),
        ("tini", "-s", "--", "sh", "-c", "vllm serve m"),
        ("dumb-init", "--", "vllm", "serve", "m"),
        ("numactl", "-m", "0", "-N", "0", "vllm", "serve", "m"),
        ("numactl", "--membind", "0", "--", "vllm", "serve", "m"),
        ("env", "A=b", "vllm", "serve", "m"),
        ("nsys", "profile", "--trace", "cuda", "-o", "out", "vllm", "serve", "m"),
        ("nsys", "profile", "--force-overwrite", "vllm", "serve", "m"),
        ("torchrun", "--nproc-per-node", "2", "-m", "vllm.entrypoints.openai.api_server"),
        ("accelerate", "launch", "-m", "sglang.launch_server"),
        ("python", "-m", "torch.distributed.run", "-m", "sglang.launch_server"),
        ("mpirun", "-np", "2", "python", "-m", "sglang.launch_server"),
        ("mpirun", "-x", "A=b", "--", "python", "-m", "sglang.launch_server"),
        ("runuser", "-u", "u", "--", "vllm", "serve", "m"),
        ("su", "-", "u", "-c", "vllm serve m"),
        ("script", "-c", "vllm serve m", "log"),
        ("uv", "run", "--no-sync", "vllm", "serve", "m"),
        ("timeout", "30", "vllm", "serve", "m"),
    ],
)
def test_an_engine_is_found_behind_its_launcher(argv: tuple[str, ...]) -> None:
    verdict = explain(Markers(argv=argv))

    assert (verdict.answer, verdict.confidence) == ("mixed", Confidence.MEDIUM)


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (("vllm", "serve", "m"), MORE),
        (("sh", "-c", "vllm serve m"), MORE),
        (("vllm", "serve", "m"), {MODE: "prefill"}),
        (("vllm", "serve", "m"), {"VLLM_KV_ROLE": "kv_producer"}),
        (("vllm", "serve", "m"), {"KV_TRANSFER_CONFIG": '{"kv_role":"kv_producer"}'}),
        (("vllm", "serve", "m"), {"TRTLLM_DISAGG_ROLE": "context"}),
        (("python", "-m", "sglang.launch_server"), {MODE: "prefill"}),
    ],
)
def test_variables_that_a_program_never_reads_do_not_count(
    argv: tuple[str, ...], env: dict[str, str]
) -> None:
    assert explain(Markers(argv=argv, env=env)).answer == "mixed"


def test_a_variable_counts_if_a_script_passes_it_on() -> None:
    handed = script("vllm serve m $VLLM_ADDITIONAL_ARGS", **MORE)

    assert (handed.answer, handed.confidence) == ("prefill", Confidence.HIGH)


def test_options_of_an_unknown_program_are_only_likely() -> None:
    for argv in (("/start.sh",), ("--model", "m")):
        verdict = explain(Markers(argv=argv, env=MORE))
        assert (verdict.answer, verdict.confidence) == ("prefill", Confidence.MEDIUM)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{MODE}=prefill python -m dynamo.vllm", "prefill"),
        (f"export {MODE}=prefill; python -m dynamo.vllm", "prefill"),
        (f"{MODE}=prefill; export {MODE}; python -m dynamo.vllm", "prefill"),
        (f"export {MODE}=decode; {MODE}=prefill python -m dynamo.vllm", "prefill"),
        (f"{MODE}=prefill; python -m dynamo.vllm", "unknown"),
        (f"{MODE}=prefill python -m dynamo.frontend & python -m dynamo.vllm", "unknown"),
        (f"(export {MODE}=prefill; python -m dynamo.frontend) & python -m dynamo.vllm", "unknown"),
        (
            f"(export {MODE}=prefill; python -m dynamo.vllm) & "
            f"export {MODE}=decode; python -m dynamo.vllm",
            "unknown",
        ),
    ],
)
def test_a_variable_belongs_to_the_command_it_is_set_for(text: str, answer: str) -> None:
    assert script(text).answer == answer


def test_a_shell_sees_the_variables_of_its_container() -> None:
    assert script(f"{MODE}=prefill; python -m dynamo.vllm", **{MODE: "decode"}).answer == "prefill"


@given(st.text(alphabet="()&;|$\"'\\ \nabc<EOF{}=-", max_size=200))
def test_any_script_without_a_marker_is_parsed_and_has_no_role(text: str) -> None:
    verdict = explain(Markers(argv=("sh", "-c", text)))

    assert not verdict.is_definite
    assert verdict.evidence == ()
    assert len(commands(("sh", "-c", text))) <= MAX_COMMANDS


@pytest.mark.parametrize(
    "text", ["(" * 40_000, ")" * 40_000, "(a" * 20_000, "( " * 20_000, "<<A\n" * 9000]
)
def test_a_script_of_brackets_is_parsed_cheaply(text: str) -> None:
    """Each would be a shell within a shell."""
    found = commands(("sh", "-c", text + "; " + ENGINE))

    assert sum(command == [OPEN] for command in found) <= MAX_SUBSHELLS * 2
    assert sum(map(len, found)) <= MAX_COMMANDS + len(text)
