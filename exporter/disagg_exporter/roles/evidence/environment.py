"""Role claims of environment variables; only the names listed here are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import parse_kv_config
from disagg_exporter.roles.command_line.programs import Program
from disagg_exporter.roles.command_line.spanning import NAMES_OF_PARTS
from disagg_exporter.roles.evidence.options import kv_claims
from disagg_exporter.roles.evidence.role_names import (
    definite_claim,
    name_claims,
    plain,
    role_word,
    tensorrt_word,
    word_claims,
)
from disagg_exporter.roles.evidence.types import (
    Claim,
    Confidence,
    Source,
    conditional_decode,
    note,
    stated,
)

ARGUMENT_NAMES = (
    *("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_ARGS"),
    *("SGLANG_EXTRA_ARGS", "SGLANG_ARGS"),
)
EXPLICIT_NAME = "DISAGG_NODE_ROLE"
MODE_NAMES = (
    "DYN_VLLM_DISAGGREGATION_MODE",
    "DYN_SGLANG_DISAGGREGATION_MODE",
    "DYN_TRTLLM_DISAGGREGATION_MODE",
    "DYN_DISAGGREGATION_MODE",
)
SWITCH_NAMES = {
    "DYN_VLLM_IS_PREFILL_WORKER": Role.PREFILL,
    "DYN_VLLM_IS_DECODE_WORKER": Role.DECODE,
    "DYN_VLLM_MULTIMODAL_ENCODE_WORKER": Role.ENCODE,
    "DYN_VLLM_MULTIMODAL_DECODE_WORKER": Role.DECODE,
    "DYN_SGL_MULTIMODAL_ENCODE_WORKER": Role.ENCODE,
}
_TENSORRT_NAME = "TRTLLM_DISAGG_ROLE"
_TENSORRT_PROGRAMS = (Program.TENSORRT_LLM, Program.DYNAMO_TRTLLM, Program.OTHER_ENGINE)
_LMCACHE_NAMES = ("LMCACHE_PD_ROLE", "LMCACHE_NIXL_ROLE")
_LMCACHE_ROLES = {"sender": Role.PREFILL, "receiver": Role.DECODE, "both": Role.UNKNOWN}
_KV_CONFIG_NAMES = ("VLLM_KV_TRANSFER_CONFIG", "KV_TRANSFER_CONFIG")
_KV_ROLE_NAMES = ("VLLM_KV_ROLE", "LMCACHE_KV_ROLE", "KV_ROLE")
_ROLE_NAMES = (
    *("DISAGGREGATION_MODE", "SGLANG_DISAGGREGATION_MODE", "ROLE_TYPE", "ROLE", "ENGINE_ROLE"),
    *("WORKER_ROLE", "SERVER_ROLE", "DISAGG_ROLE", "PD_ROLE", "VLLM_ROLE", "INSTANCE_ROLE"),
)
_FREE_NAMES = (
    *("HOSTNAME", "POD_NAME", "SERVICE_NAME", "OTEL_SERVICE_NAME", "LWS_NAME", "PODSET_NAME"),
    *("LWS_LEADER_ADDRESS", "VLLM_PROCESS_NAME_PREFIX", "DYN_PARENT_DGD_K8S_NAME"),
)
_AIBRIX_NAMES = ("ROLESET_NAME", "ROLE_REPLICA_INDEX", "STORM_SERVICE_NAME")
_AIBRIX = (Source.AIBRIX, Confidence.HIGH)
_GENERIC = (Source.ROLE_LABEL, Confidence.MEDIUM)
NAMES_READ = frozenset(
    (
        *(EXPLICIT_NAME, _TENSORRT_NAME, "DYN_COMPONENT", "ROLE_NAME"),
        *(*_AIBRIX_NAMES, *ARGUMENT_NAMES, *MODE_NAMES, *SWITCH_NAMES, *_LMCACHE_NAMES),
        *(*_KV_CONFIG_NAMES, *_KV_ROLE_NAMES, *_ROLE_NAMES, *_FREE_NAMES, *NAMES_OF_PARTS),
    )
)
"""All variables that may be kept to determine a role and to recognise followers."""


def environment_claims(
    env: Mapping[str, str], mode_on_command_line: bool, program: Program = Program.UNKNOWN
) -> Iterator[Claim]:
    """Yield the claims of the environment.

    Variables that only some program reads are no evidence for another one. An unknown program may
    be a start script, which can read any of them.

    Args:
        env: The variables; those not listed here are not read.
        mode_on_command_line: The command line sets the mode, which overrides the environment.
        program: The program that reads them.
    """
    anything = program is Program.UNKNOWN
    if EXPLICIT_NAME in env:
        explicit = role_word(env[EXPLICIT_NAME])
        yield definite_claim(Source.EXPLICIT, EXPLICIT_NAME, explicit, Confidence.CERTAIN)
    if "ROLE_NAME" in env:
        ours = any(name in env for name in _AIBRIX_NAMES)
        source, sure = _AIBRIX if ours else _GENERIC
        yield from word_claims(source, "ROLE_NAME", env["ROLE_NAME"], sure)
    if anything or program.is_dynamo:
        yield from _dynamo(env, mode_on_command_line)
    known = tensorrt_word(env.get(_TENSORRT_NAME, ""))
    if known and (anything or program in _TENSORRT_PROGRAMS):
        yield stated(Source.TENSORRT_LLM, _TENSORRT_NAME, *known, Confidence.HIGH)
    for name in _LMCACHE_NAMES:
        word = plain(env.get(name, ""))
        if word in _LMCACHE_ROLES:
            yield stated(Source.LMCACHE, name, word, _LMCACHE_ROLES[word], Confidence.HIGH)
    if anything:
        # Scripts turn these into options; no engine reads them itself.
        yield from _kv(env)
    for name in _ROLE_NAMES:
        yield from word_claims(Source.ROLE_LABEL, name, env.get(name, ""), Confidence.MEDIUM)
    for name in _FREE_NAMES:
        yield from name_claims(name, env.get(name, ""))


def _dynamo(env: Mapping[str, str], mode_on_command_line: bool) -> Iterator[Claim]:
    for name in MODE_NAMES:
        if name not in env or not (recognised := role_word(env[name])):
            continue
        if mode_on_command_line:
            yield note(Source.DYNAMO, name, recognised[0], "the command line's mode counts")
        else:
            yield stated(Source.DYNAMO, name, *recognised, Confidence.HIGH)
    for name, role in SWITCH_NAMES.items():
        if plain(env.get(name, "")) in ("true", "1", "yes", "on"):
            yield stated(Source.DYNAMO, name, "on", role, Confidence.HIGH)
    component, high = env.get("DYN_COMPONENT", ""), (Confidence.HIGH, Confidence.HIGH)
    yield from word_claims(Source.DYNAMO, "DYN_COMPONENT", component, *high)
    if plain(component) in ("backend", "worker"):
        why = "decode or aggregated"
        yield conditional_decode(Source.DYNAMO, "DYN_COMPONENT", plain(component), why)


def _kv(env: Mapping[str, str]) -> Iterator[Claim]:
    for name in _KV_CONFIG_NAMES:
        if name in env:
            yield from kv_claims(parse_kv_config(env[name]), f"{name} kv_role")
    for name in _KV_ROLE_NAMES:
        if name in env:
            yield from kv_claims(parse_kv_config(f"kv_role={env[name]}"), name)
