"""What the options on KV and encoder-cache transfer say of an engine's role."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import Flags
from disagg_exporter.roles.command_line.kv_config import KvConfig
from disagg_exporter.roles.evidence.claims import Claim, Kind, Source, note, stated
from disagg_exporter.roles.evidence.types import Confidence

KV_MARKER = "--kv-transfer-config kv_role"
_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def kv_claims(config: KvConfig, marker: str = KV_MARKER) -> Iterator[Claim]:
    """What a KV transfer configuration claims; nested roles count where the outer is `kv_both`."""
    definite = sorted(config.roles & _ROLES.keys())
    for word in definite:
        sure = Confidence.MEDIUM if config.store_only else Confidence.HIGH
        yield stated(Source.VLLM, marker, word, _ROLES[word], sure)
    if definite:
        return
    if config.store_only:
        yield Claim(
            Kind.INFERRED,
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
