"""Role claims of an engine's options, and of their absence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import Flags, KvConfig
from disagg_exporter.roles.command_line.programs import FoundProgram, Program
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.evidence.role_names import (
    component_word,
    definite_claim,
    name_claims,
    role_word,
    tensorrt_word,
)
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
# Options whose presence states a role; None marks those of a router.
_SWITCHES = (
    ("is-prefill-worker", Source.DYNAMO, Role.PREFILL),
    ("is-decode-worker", Source.DYNAMO, Role.DECODE),
    ("multimodal-decode-worker", Source.DYNAMO, Role.DECODE),
    ("multimodal-encode-prefill-worker", Source.DYNAMO, Role.MIXED),
    ("multimodal-processor", Source.PROGRAM, None),
    ("ec-processor", Source.PROGRAM, None),
    # These encode images, audio or video and do nothing else.
    ("mm-encoder-only", Source.VLLM, Role.ENCODE),
    ("encoder-only", Source.SGLANG, Role.ENCODE),
    ("multimodal-encode-worker", Source.DYNAMO, Role.ENCODE),
    ("vllm-native-encoder-worker", Source.DYNAMO, Role.ENCODE),
)
ROLE_SWITCH = "enable-pd-role-switch"
_ROLE_OPTIONS = (
    *("role", "splitwise-role", "instance-role", "role-type", "pd-role", "engine-role"),
    *("worker-role", "worker-type"),
)
# Options of one engine only: FastDeploy, xLLM, RTP-LLM. The others may belong to any program.
_OWN_OPTIONS = ("splitwise-role", "instance-role", "role-type")
_ROLE_FILES = ("config", "config-file", "extra-llm-api-options", "extra-engine-args")
_CONFIG_FILES = (*_ROLE_FILES, "engine-config")
_DYNAMO_WORDS = frozenset({"agg", "aggregated", "pd", "prefill-and-decode", "encode"})
_CONTEXT_FILE = re.compile(r"(?<![a-z])(ctx|context|prefill)(?![a-z])", re.I)
_GENERATION_FILE = re.compile(r"(?<![a-z])(gen|generation|decode)(?![a-z])", re.I)
_RAY_TITLE = re.compile(r"PD(Prefill|Decode)Server|(?<![A-Za-z])(Prefill|Decode):")


def option_claims(found: FoundProgram, flags: Flags, title: str) -> Iterator[Claim]:
    """Yield the claims of a command's options; `title` is its first word, Ray's process name."""
    yield from _mode(found.program, flags)
    if flags.has(ROLE_SWITCH):
        yield note(Source.SGLANG, f"--{ROLE_SWITCH}", DYNAMIC_WORD, "changes its role")
    for name, source, role in _SWITCHES:
        if flags.has(name):
            yield stated(source, f"--{name}", "present", role, Confidence.HIGH)
    yield from _endpoint(flags)
    yield from _server_role(flags)
    yield from _role_options(found.program, flags)
    config = flags.config("kv-transfer-config")
    if config is not None:
        yield from kv_claims(config)
    yield from _encoder_config(flags)
    if found.program is Program.ENCODER:
        yield stated(Source.ENGINE, "program", found.word, Role.ENCODE, Confidence.HIGH)
    yield from _files(found.program, flags)
    if "PDProxyServer" in title[:512]:
        yield stated(Source.PROGRAM, "process title", "PDProxyServer", None, Confidence.HIGH)
    if ray := _RAY_TITLE.search(title[:512]):
        word = (ray[1] or ray[2]).lower()
        yield stated(Source.RAY_SERVE, "process title", word, Role(word), Confidence.MEDIUM)
    elif "::" in title[:512]:
        yield from name_claims("process title", title)


def _mode(program: Program, flags: Flags) -> Iterator[Claim]:
    value = flags.value("disaggregation-mode")
    if value is None:
        return
    recognised = role_word(value)
    word = recognised[0] if recognised else ""
    dynamo = program.is_dynamo or (program is Program.UNKNOWN and word in _DYNAMO_WORDS)
    source = Source.DYNAMO if dynamo else Source.SGLANG
    yield definite_claim(source, MODE, recognised, Confidence.HIGH, "no mode that we know")


def _endpoint(flags: Flags) -> Iterator[Claim]:
    """Yield the claim of the component in Dynamo's `dyn://namespace.component.endpoint`."""
    parts = (flags.value("endpoint") or "").removeprefix("dyn://").split(".")
    if len(parts) != 3:
        return
    marker = "--endpoint component"
    if recognised := component_word(parts[1]):
        yield stated(Source.DYNAMO, marker, *recognised, Confidence.MEDIUM)
    elif parts[1] == "backend":
        yield conditional_decode(Source.DYNAMO, marker, "backend", "decode or aggregated")


def _server_role(flags: Flags) -> Iterator[Claim]:
    value = flags.value("server-role")
    if value is not None:
        known = tensorrt_word(value)
        yield definite_claim(Source.TENSORRT_LLM, "--server_role", known, Confidence.HIGH)


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
        else:
            claims = name_claims("name of the configuration file", name)
            yield from (claim for claim in claims if claim.says is not None)


KV_MARKER = "--kv-transfer-config kv_role"
_KV_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def kv_claims(config: KvConfig, marker: str = KV_MARKER) -> Iterator[Claim]:
    """Yield a KV transfer configuration's claims; nested roles count if the outer is `kv_both`."""
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


def _encoder_config(flags: Flags) -> Iterator[Claim]:
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


_SOURCES = {
    Program.VLLM: Source.VLLM,
    Program.SGLANG: Source.SGLANG,
    Program.TENSORRT_LLM: Source.TENSORRT_LLM,
}
# Engines that do both phases unless an option says otherwise: source, and what is missing.
_MIXED_BY_DEFAULT = {
    Program.VLLM: (Source.VLLM, "no --kv-transfer-config", "hands no KV over"),
    Program.SGLANG: (Source.SGLANG, "no --disaggregation-mode", "default: aggregated"),
    Program.DYNAMO_SGLANG: (Source.DYNAMO, "no --disaggregation-mode", "default: aggregated"),
    Program.DYNAMO_TRTLLM: (Source.DYNAMO, "no --disaggregation-mode", "default: aggregated"),
    Program.LMDEPLOY: (Source.LMDEPLOY, "no --role", "default: both phases"),
}


def default_claims(program: Program, flags: Flags, said: Sequence[Claim]) -> Iterator[Claim]:
    """Yield the claims of an engine's defaults, where no option changed them.

    Args:
        program: The engine.
        flags: All its options.
        said: The claims of its options.
    """
    if any(claim.kind in (ClaimKind.STATED, ClaimKind.INFERRED) for claim in said):
        return
    if flags.given("disaggregation-mode", "role", "server-role"):
        return
    if any(flags.has(name) for name in _ROLE_FILES):
        source = _SOURCES.get(program, Source.DYNAMO if program.is_dynamo else Source.ENGINE)
        yield note(source, "configuration file", "present", "may hold the role")
        return
    transfers = program is Program.VLLM and flags.config("kv-transfer-config") is not None
    switches = program.is_sglang and any(claim.switches for claim in said)
    if program in (Program.DYNAMO_VLLM, Program.DYNAMO_OTHER):
        why = "aggregated, or the decode side of a version that gives it no option"
        yield conditional_decode(Source.DYNAMO, "no --disaggregation-mode", "given", why)
    elif program is Program.TENSORRT_LLM:
        why = "a worker often has no option that names its phase"
        yield note(Source.TENSORRT_LLM, "no --server_role", "given", why)
    elif program in _MIXED_BY_DEFAULT and not transfers and not switches:
        source, marker, why = _MIXED_BY_DEFAULT[program]
        sure = Confidence.MEDIUM
        yield Claim(ClaimKind.INFERRED, source, marker, "given", Role.MIXED, sure, why)
