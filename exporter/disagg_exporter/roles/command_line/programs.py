"""Distinguishes engines from programs that only run beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.roles.command_line.shell_words import program_name


class Program(StrEnum):
    """A kind of program, as far as it matters for roles."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    DYNAMO_VLLM = "dynamo.vllm"
    DYNAMO_SGLANG = "dynamo.sglang"
    DYNAMO_TRTLLM = "dynamo.trtllm"
    DYNAMO_OTHER = "dynamo"
    LMDEPLOY = "lmdeploy"
    OTHER_ENGINE = "engine"
    ENCODER = "encoder"
    NOT_AN_ENGINE = "not_an_engine"
    TOOL = "tool"
    UNKNOWN = "unknown"

    @property
    def is_dynamo(self) -> bool:
        """Whether it is one of Dynamo's workers."""
        return self.value.startswith("dynamo")

    @property
    def is_sglang(self) -> bool:
        """Whether it is SGLang, by itself or as Dynamo's."""
        return self in (Program.SGLANG, Program.DYNAMO_SGLANG)


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """The program of a command: its kind, our name for it and where its own arguments begin."""

    program: Program
    word: str = ""
    arguments_at: int = 0


# By the bare name of the program, or by the dotted module after `-m`; the first match counts.
_TABLE: tuple[tuple[str, Program, str], ...] = (
    (r"dynamo\.vllm(\..*)?", Program.DYNAMO_VLLM, "dynamo.vllm"),
    (r"dynamo\.sglang(\..*)?", Program.DYNAMO_SGLANG, "dynamo.sglang"),
    (r"dynamo\.trtllm(\..*)?", Program.DYNAMO_TRTLLM, "dynamo.trtllm"),
    (r"dynamo\.(mocker|llama_cpp|tokenspeed)(\..*)?", Program.DYNAMO_OTHER, "dynamo worker"),
    (r"dynamo\.[\w.]+", Program.NOT_AN_ENGINE, "dynamo component"),
    (r"dynamo-[a-z]+-sidecar", Program.NOT_AN_ENGINE, "dynamo sidecar"),
    (r"vllm\.entrypoints\.(openai|cli|api_server|grpc_server)(\..*)?", Program.VLLM, "vllm"),
    (r"vllm\.benchmarks(\..*)?", Program.NOT_AN_ENGINE, "vllm benchmark"),
    (r"vllm([-_]router|_router\.\S+)", Program.NOT_AN_ENGINE, "vllm-router"),
    (r"sglang\.srt\.disaggregation\.encode_server", Program.ENCODER, "encode_server"),
    (r"sglang\.srt\.disaggregation\.(mini_lb|launch_lb)", Program.NOT_AN_ENGINE, "mini_lb"),
    (r"sglang\.(launch_server|srt\.entrypoints\.\S+)", Program.SGLANG, "sglang"),
    (r"launch_server\.py", Program.SGLANG, "sglang"),
    (r"api_server\.py", Program.VLLM, "vllm"),
    (r"sglang\.(bench_\w+|profiler|eval\S*|check_env)", Program.NOT_AN_ENGINE, "sglang tool"),
    (r"sglang[-_]router\.launch_server", Program.UNKNOWN, "sglang_router.launch_server"),
    (r"(sglang|sgl)[-_]router(\.\S+)?|smg(\.\S+)?", Program.NOT_AN_ENGINE, "sglang router"),
    (r"tensorrt_llm\.commands\.serve", Program.TENSORRT_LLM, "trtllm-serve"),
    (r"trtllm-(bench|eval|build|refit)", Program.NOT_AN_ENGINE, "trtllm tool"),
    (r"lmcache([-_]?(server|controller)|\.\S+)?", Program.NOT_AN_ENGINE, "lmcache server"),
    (
        r"mooncake_(master|client|http_metadata_server)|mooncake\.\S+",
        Program.NOT_AN_ENGINE,
        "mooncake server",
    ),
    (
        r"llm-d-inference-sim|tritonserver|rtp_llm\.\S+|fastdeploy\.\S+",
        Program.OTHER_ENGINE,
        "engine",
    ),
    (
        r"\S*(routing-sidecar|pd-sidecar|routing-proxy|inference-scheduler|endpoint-?picker)\S*"
        r"|llm-d-router\S*|llm-d-epp|epp|kthena-router|gateway-plugins?|body-based-routing|bbr",
        Program.NOT_AN_ENGINE,
        "router",
    ),
    (r"\S*(proxy|mini_?lb|load_?balanc\w*|router)\S*\.py", Program.NOT_AN_ENGINE, "proxy script"),
    (r"[\w.]*(proxy|router|gateway|load_?balanc)\w*:\w+", Program.NOT_AN_ENGINE, "proxy app"),
    (r"\S*bench\w*\.py", Program.NOT_AN_ENGINE, "benchmark script"),
    (
        r"envoy|nginx|haproxy|traefik|socat|etcd|nats-server|redis-server|litellm|caddy",
        Program.NOT_AN_ENGINE,
        "proxy",
    ),
    (
        r"aiperf|genai-perf|guidellm|inference-perf|evalscope|lm[-_]eval|locust|k6|hey|curl|wget"
        r"|sleep|aibrix_runtime|aibrix_download|huggingface-cli|prometheus|grafana\S*|dcgm-exporter|nvidia-smi|raylet|gcs_server|ray::proxyactor"
        r"|ray::servecontroller",
        Program.TOOL,
        "client or tool",
    ),
)
# Programs that are not engines, by name. Models and arguments may be named like this too, so only
# the first word is checked.
_NON_ENGINE_NAME = re.compile(
    r"[\w.-]*(sidecar|proxy|router|gateway|scheduler|autoscaler|exporter|manager|operator|controller|tokenizer|"
    r"load-?balancer)[\w.-]*|[\w.-]+-epp"
)
_RULES = tuple((re.compile(pattern), program, word) for pattern, program, word in _TABLE)

# What one of these programs does depends on its subcommand.
_SUBCOMMANDS: dict[str, dict[str, Program]] = {
    "vllm": {
        "serve": Program.VLLM,
        "run-batch": Program.OTHER_ENGINE,
        **dict.fromkeys(
            ("launch", "bench", "chat", "complete", "collect-env", "router"), Program.NOT_AN_ENGINE
        ),
    },
    "sglang": {
        "serve": Program.SGLANG,
        **dict.fromkeys(("bench", "router", "version"), Program.NOT_AN_ENGINE),
    },
    "trtllm-serve": {
        "disaggregated": Program.NOT_AN_ENGINE,
        "disaggregated_mpi_worker": Program.OTHER_ENGINE,
        "mm_embedding_serve": Program.ENCODER,
    },
}
# Their arguments are text to them, not a command that they run here.
_READERS = re.compile(
    r"echo|printf|e?grep|cat|tee|sed|awk|ls|which|type|test|\[|pgrep|p?kill|killall|ps|logger|touch|rm"
    r"|cp|mv|mkdir|chmod|ln|find|pip3?|apt(-get)?|git|alias|ssh|trap"
)
_KEYWORDS = frozenset({"if", "then", "else", "elif", "while", "until", "do", "!", "{", "time"})
# They run what comes after their own options, which need not have values.
_LAUNCHERS = frozenset(
    (
        *("uv", "poetry", "pipenv", "hatch", "pixi", "rye", "conda", "mamba", "micromamba"),
        *("mpirun", "mpiexec", "srun", "systemd-run", "unshare", "sudo", "doas", "nsys", "ncu"),
    )
)
_WRAPPER_FLAG = re.compile(r"--?[\w-]+")
_MAX_SEARCHED = 256


def find_program(tokens: Sequence[str]) -> FoundProgram:
    """Return the program that a command runs, past `env`, `numactl`, `python -m` and the like."""
    begin = next((at for at, token in enumerate(tokens) if token not in _KEYWORDS), 0)
    first = program_name(tokens[begin]) if tokens else ""
    if _READERS.fullmatch(first):
        return FoundProgram(Program.TOOL, "client or tool", begin + 1)
    for at, token in enumerate(tokens[:_MAX_SEARCHED]):
        name = program_name(token)
        if token.startswith("-"):
            continue
        if at and _is_value(tokens, at) and not (first in _LAUNCHERS and _serves(tokens, at)):
            continue
        if name in _SUBCOMMANDS:
            return _by_subcommand(name, tokens, at)
        if name == "lmdeploy":
            rest = [word for word in tokens[at + 1 : at + 4] if not word.startswith("-")]
            if rest[:1] != ["serve"] or rest[1:2] in (["proxy"], ["gateway"]):
                return FoundProgram(Program.NOT_AN_ENGINE, "lmdeploy", at + 1)
            return FoundProgram(Program.LMDEPLOY, "lmdeploy", at + 1)
        for pattern, program, word in _RULES:
            if pattern.fullmatch(name):
                return FoundProgram(program, word, at + 1)
    whole = tokens[0].strip() if tokens else ""
    own = whole.startswith("/") or "/" not in whole
    if own and _NON_ENGINE_NAME.fullmatch(first):
        return FoundProgram(Program.NOT_AN_ENGINE, "router or sidecar", 1)
    return FoundProgram(Program.UNKNOWN)


def _is_value(tokens: Sequence[str], at: int) -> bool:
    """Return whether a token is the value of the option before it rather than a program.

    After the first long option of an engine anything is a value; wrappers' options are short, carry
    `=` or come before the word `python`, and `-m` names a module: `torchrun` also runs one, while
    `numactl -m` has a number. After `--` comes what is run.
    """
    before = tokens[at - 1]
    if before == "--":
        return False
    if before == "-m":
        python = any(program_name(word).startswith("py") for word in tokens[:at])
        return not python and "." not in tokens[at]
    return before.startswith("--") and "=" not in before and bool(_WRAPPER_FLAG.fullmatch(before))


def _serves(tokens: Sequence[str], at: int) -> bool:
    """Return whether an engine's program and subcommand are here, so that it is no option value."""
    table = _SUBCOMMANDS.get(program_name(tokens[at]), {})
    return at + 1 < len(tokens) and tokens[at + 1] in table


def _by_subcommand(name: str, tokens: Sequence[str], at: int) -> FoundProgram:
    table = _SUBCOMMANDS[name]
    first = next((word.strip() for word in tokens[at + 1 :] if not word.startswith("-")), "")
    if first in table:
        return FoundProgram(table[first], f"{name} {first}", at + 1)
    if name == "trtllm-serve":
        return FoundProgram(Program.TENSORRT_LLM, name, at + 1)
    # `vllm` and `sglang` without a known subcommand: some new tool of theirs.
    return FoundProgram(Program.UNKNOWN, name, at + 1)
