"""Role claims of an engine's options, and of their absence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import Flags, KvConfig
from disagg_exporter.roles.command_line.programs import FoundProgram, Program
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.evidence.role_names import name_claim, role_word, tensorrt_word
from disagg_exporter.roles.evidence.types import (
    DYNAMIC_WORD,
    Claim,
    ClaimKind,
    Confidence,
    Source,
    conditional_decode,
    note,
    stated,
    weak,
)

MODE = "--disaggregation-mode"
_SWITCHES = (
    ("is-prefill-worker", Role.PREFILL),
    ("is-decode-worker", Role.DECODE),
    ("multimodal-decode-worker", Role.DECODE),
    ("multimodal-encode-prefill-worker", Role.MIXED),
    ("multimodal-processor", None),
    ("ec-processor", None),
)
ROLE_SWITCH = "enable-pd-role-switch"
_ROLE_OPTIONS = (
    *("role", "splitwise-role", "instance-role", "role-type", "pd-role", "engine-role"),
    *("worker-role", "worker-type"),
)
# One engine's own: FastDeploy, xLLM, RTP-LLM. The others are anybody's.
_OWN_OPTIONS = ("splitwise-role", "instance-role", "role-type")
_CONFIG_FILES = (
    *("config", "config-file", "extra-llm-api-options", "extra-engine-args", "engine-config"),
)
_DYNAMO_WORDS = frozenset({"agg", "aggregated", "pd", "prefill-and-decode", "encode"})
_CONTEXT_FILE = re.compile(r"(?<![a-z])(ctx|context|prefill)(?![a-z])", re.I)
_GENERATION_FILE = re.compile(r"(?<![a-z])(gen|generation|decode)(?![a-z])", re.I)
_RAY_TITLE = re.compile(r"PD(Prefill|Decode)Server|(?<![A-Za-z])(Prefill|Decode):")


def option_claims(found: FoundProgram, flags: Flags, title: str) -> Iterator[Claim]:
    """What a command's options claim; `title` is its first word, which Ray uses as a name."""
    yield from _mode(found.program, flags)
    if flags.has(ROLE_SWITCH):
        yield note(Source.SGLANG, f"--{ROLE_SWITCH}", DYNAMIC_WORD, "changes its role")
    for name, role in _SWITCHES:
        if flags.has(name):
            source = Source.PROGRAM if role is None else Source.DYNAMO
            yield stated(source, f"--{name}", "present", role, Confidence.HIGH)
    yield from _endpoint(flags)
    yield from _server_role(flags)
    yield from _role_options(found.program, flags)
    config = flags.config("kv-transfer-config")
    if config is not None:
        yield from kv_claims(config)
    yield from encoder_claims(flags)
    if found.program is Program.ENCODER:
        yield stated(Source.ENGINE, "program", found.word, Role.ENCODE, Confidence.HIGH)
    yield from _files(found.program, flags)
    if "PDProxyServer" in title[:512]:
        yield stated(Source.PROGRAM, "process title", "PDProxyServer", None, Confidence.HIGH)
    if ray := _RAY_TITLE.search(title[:512]):
        word = (ray[1] or ray[2]).lower()
        yield stated(Source.RAY_SERVE, "process title", word, Role(word), Confidence.MEDIUM)
    elif "::" in title[:512] and (named := name_claim("process title", title)):
        yield named


def _mode(program: Program, flags: Flags) -> Iterator[Claim]:
    value = flags.value("disaggregation-mode")
    if value is None:
        return
    recognised = role_word(value)
    word = recognised[0] if recognised else ""
    dynamo = program.is_dynamo or (program is Program.UNKNOWN and word in _DYNAMO_WORDS)
    source = Source.DYNAMO if dynamo else Source.SGLANG
    if recognised:
        yield stated(source, MODE, word, recognised[1], Confidence.HIGH)
    else:
        yield note(source, MODE, "?", "no mode that we know")


def _endpoint(flags: Flags) -> Iterator[Claim]:
    """The component in Dynamo's `dyn://namespace.component.endpoint`."""
    parts = (flags.value("endpoint") or "").removeprefix("dyn://").split(".")
    if len(parts) != 3:
        return
    marker = "--endpoint component"
    recognised = role_word(parts[1].removeprefix("tensorrt_llm_").removeprefix("sglang_"))
    if recognised and recognised[1] is not Role.MIXED:
        yield stated(Source.DYNAMO, marker, *recognised, Confidence.MEDIUM)
    elif parts[1] == "backend":
        yield conditional_decode(Source.DYNAMO, marker, "backend", "decode or aggregated")


def _server_role(flags: Flags) -> Iterator[Claim]:
    value = flags.value("server-role")
    if value is None:
        return
    recognised = tensorrt_word(value)
    if recognised:
        yield stated(Source.TENSORRT_LLM, "--server_role", *recognised, Confidence.HIGH)
    else:
        yield note(Source.TENSORRT_LLM, "--server_role", "?", "no role that we know")


def _role_options(program: Program, flags: Flags) -> Iterator[Claim]:
    for name in _ROLE_OPTIONS:
        value = flags.value(name)
        recognised = role_word(value) if value is not None else None
        if recognised:
            lmdeploy = program is Program.LMDEPLOY
            source = Source.LMDEPLOY if lmdeploy else Source.ENGINE
            sure = Confidence.HIGH if lmdeploy or name in _OWN_OPTIONS else Confidence.MEDIUM
            yield stated(source, f"--{name}", *recognised, sure)


def _files(program: Program, flags: Flags) -> Iterator[Claim]:
    for option in _CONFIG_FILES:
        name = program_name(flags.value(option) or "")
        context, generation = _CONTEXT_FILE.search(name), _GENERATION_FILE.search(name)
        tensorrt = program in (Program.TENSORRT_LLM, Program.DYNAMO_TRTLLM)
        if tensorrt and bool(context) != bool(generation):
            role = Role.PREFILL if context else Role.DECODE
            word = "context" if context else "generation"
            yield weak(Source.NAME, "name of the configuration file", word, role, "only a name")
        elif (
            claim := name_claim("name of the configuration file", name)
        ) and claim.says is not None:
            yield claim


KV_MARKER = "--kv-transfer-config kv_role"
_KV_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def kv_claims(config: KvConfig, marker: str = KV_MARKER) -> Iterator[Claim]:
    """What a KV transfer configuration claims; nested roles count where the outer is `kv_both`."""
    definite = sorted(config.roles & _KV_ROLES.keys())
    for word in definite:
        sure = Confidence.MEDIUM if config.store_only else Confidence.HIGH
        yield stated(Source.VLLM, marker, word, _KV_ROLES[word], sure)
    if definite:
        return
    if config.store_only:
        yield Claim(
            ClaimKind.INFERRED,
            Source.VLLM,
            "--kv-transfer-config kv_connector",
            "offloading",
            Role.MIXED,
            Confidence.LOW,
            "this connector only moves KV to a store and back",
        )
    elif "kv_both" in config.roles:
        yield note(Source.VLLM, marker, "kv_both", "prefill, decode and mixed engines all use it")
    else:
        yield note(Source.VLLM, "--kv-transfer-config", "present", "no kv_role that we can read")


def encoder_claims(flags: Flags) -> Iterator[Claim]:
    """Options that make an engine only encode images, audio or video."""
    for name, source in (
        ("mm-encoder-only", Source.VLLM),
        ("encoder-only", Source.SGLANG),
        ("multimodal-encode-worker", Source.DYNAMO),
        ("vllm-native-encoder-worker", Source.DYNAMO),
    ):
        if flags.has(name):
            yield stated(source, f"--{name}", "present", Role.ENCODE, Confidence.HIGH)
    if flags.has("language-only"):
        yield note(Source.SGLANG, "--language-only", "present", "says only that it encodes nothing")
    config = flags.config("ec-transfer-config")
    if config is None:
        return
    marker = "--ec-transfer-config ec_role"
    if config.ec_roles == {"ec_producer"}:
        yield stated(Source.VLLM, marker, "ec_producer", Role.ENCODE, Confidence.HIGH)
    for word in sorted(config.ec_roles - {"ec_producer"}):
        yield note(Source.VLLM, marker, word, "says only that it may take encoder outputs")


_ROLE_FILES = ("config", "config-file", "extra-llm-api-options", "extra-engine-args")


def silence_claims(program: Program, flags: Flags, said: Sequence[Claim]) -> Iterator[Claim]:
    """What an engine is by its defaults, where nothing on its command line changed them.

    Args:
        program: The engine.
        flags: All its options.
        said: What its options said already.
    """
    if any(claim.kind in (ClaimKind.STATED, ClaimKind.INFERRED) for claim in said):
        return
    if flags.given("disaggregation-mode", "role", "server-role"):
        return
    if any(flags.has(name) for name in _ROLE_FILES):
        yield note(_engine_source(program), "configuration file", "present", "may hold the role")
        return
    match program:
        case Program.VLLM:
            if flags.config("kv-transfer-config") is None:
                yield _mixed_by_default(Source.VLLM, "no --kv-transfer-config", "hands no KV over")
        case Program.SGLANG | Program.DYNAMO_SGLANG:
            if not any(claim.switches for claim in said):
                yield _mixed_by_default(
                    _engine_source(program), "no --disaggregation-mode", "default: aggregated"
                )
        case Program.DYNAMO_TRTLLM:
            yield _mixed_by_default(
                Source.DYNAMO, "no --disaggregation-mode", "default: aggregated"
            )
        case Program.DYNAMO_VLLM | Program.DYNAMO_OTHER:
            why = "aggregated, or the decode side of a version that gives it no option"
            yield conditional_decode(Source.DYNAMO, "no --disaggregation-mode", "given", why)
        case Program.LMDEPLOY:
            yield _mixed_by_default(Source.LMDEPLOY, "no --role", "default: both phases")
        case Program.TENSORRT_LLM:
            why = "a worker is often not told its half"
            yield note(Source.TENSORRT_LLM, "no --server_role", "given", why)
        case _:
            pass


def _engine_source(program: Program) -> Source:
    match program:
        case Program.VLLM:
            return Source.VLLM
        case Program.SGLANG:
            return Source.SGLANG
        case Program.TENSORRT_LLM:
            return Source.TENSORRT_LLM
        case _:
            return Source.DYNAMO if program.is_dynamo else Source.ENGINE


def _mixed_by_default(source: Source, marker: str, why: str) -> Claim:
    return Claim(ClaimKind.INFERRED, source, marker, "given", Role.MIXED, Confidence.MEDIUM, why)
