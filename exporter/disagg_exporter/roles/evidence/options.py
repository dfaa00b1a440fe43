"""The options by which engines are told their role."""

from __future__ import annotations

import re
from collections.abc import Iterator

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import Flags
from disagg_exporter.roles.command_line.programs import Found, Program
from disagg_exporter.roles.command_line.shell_words import program_name
from disagg_exporter.roles.evidence.claims import (
    DYNAMIC_WORD,
    Claim,
    Source,
    conditional_decode,
    note,
    stated,
    weak,
)
from disagg_exporter.roles.evidence.transfer import encoder_claims, kv_claims
from disagg_exporter.roles.evidence.types import Confidence
from disagg_exporter.roles.evidence.wording import name_claim, role_word, tensorrt_word

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


def option_claims(found: Found, flags: Flags, title: str) -> Iterator[Claim]:
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
