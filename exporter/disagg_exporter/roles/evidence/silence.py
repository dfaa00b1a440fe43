"""What it means that a command line says nothing of a role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import Flags
from disagg_exporter.roles.command_line.programs import Program
from disagg_exporter.roles.evidence.claims import Claim, Kind, Source, conditional_decode, note
from disagg_exporter.roles.evidence.types import Confidence

_FILES = ("config", "config-file", "extra-llm-api-options", "extra-engine-args")


def silence_claims(program: Program, flags: Flags, said: Sequence[Claim]) -> Iterator[Claim]:
    """What an engine is by its defaults, where nothing on its command line changed them.

    Args:
        program: The engine.
        flags: All its options.
        said: What its options said already.
    """
    if any(claim.kind in (Kind.STATED, Kind.INFERRED) for claim in said):
        return
    if flags.given("disaggregation-mode", "role", "server-role"):
        return
    if any(flags.has(name) for name in _FILES):
        yield note(_source(program), "configuration file", "present", "may hold the role")
        return
    match program:
        case Program.VLLM:
            if flags.config("kv-transfer-config") is None:
                yield _mixed(Source.VLLM, "no --kv-transfer-config", "hands no KV over")
        case Program.SGLANG | Program.DYNAMO_SGLANG:
            if not any(claim.switches for claim in said):
                yield _mixed(_source(program), "no --disaggregation-mode", "default: aggregated")
        case Program.DYNAMO_TRTLLM:
            yield _mixed(Source.DYNAMO, "no --disaggregation-mode", "default: aggregated")
        case Program.DYNAMO_VLLM | Program.DYNAMO_OTHER:
            why = "aggregated, or the decode side of a version that gives it no option"
            yield conditional_decode(Source.DYNAMO, "no --disaggregation-mode", "given", why)
        case Program.LMDEPLOY:
            yield _mixed(Source.LMDEPLOY, "no --role", "default: both phases")
        case Program.TENSORRT_LLM:
            why = "a worker is often not told its half"
            yield note(Source.TENSORRT_LLM, "no --server_role", "given", why)
        case _:
            pass


def _source(program: Program) -> Source:
    match program:
        case Program.VLLM:
            return Source.VLLM
        case Program.SGLANG:
            return Source.SGLANG
        case Program.TENSORRT_LLM:
            return Source.TENSORRT_LLM
        case _:
            return Source.DYNAMO if program.is_dynamo else Source.ENGINE


def _mixed(source: Source, marker: str, why: str) -> Claim:
    return Claim(Kind.INFERRED, source, marker, "given", Role.MIXED, Confidence.MEDIUM, why)
