"""Explains why an engine reports no steps although it should, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.inside_engine.disagg_steps import wire

PLUGIN_NAME = "disagg_steps"
PLUGIN_GROUP = "vllm.stat_logger_plugins"

WITHOUT_DETAILS = (
    "the engine's steps carry no time because its iteration details are off: "
    "start it with --enable-logging-iteration-details"
)

# The plugin connects within a second of the engine's start; a step is reported when it ends.
GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SilenceFacts:
    """The known facts about one engine's stream of steps.

    `hello_flags` are the `wire` flags of its hello, None before the first. `tokens_advancing`:
    whether the engine's own page counted tokens recently, None if it has no page. `vllm_plugins`
    is VLLM_PLUGINS in the engine's environment, None if unset or unknown. `refused` counts
    connections from processes that are not of this engine, `bad_messages` the packets that were not
    understood.
    """

    seconds_since_ready: float
    connected: bool
    hello_flags: int | None
    records_seen: bool
    vllm_plugins: str | None
    tokens_advancing: bool | None
    refused: int = 0
    bad_messages: int = 0


def explain_silence(facts: SilenceFacts, grace_seconds: float = GRACE_SECONDS) -> str | None:
    """Return one sentence on why steps are missing and the remedy; None if none is needed.

    Silence is normal for an engine without work, and within the grace period.
    """
    if facts.hello_flags is not None and facts.hello_flags & wire.NO_DETAILS:
        return WITHOUT_DETAILS
    if facts.seconds_since_ready < grace_seconds:
        return None
    if not facts.connected:
        return _explain_absence(facts)
    if facts.tokens_advancing and not facts.records_seen and facts.bad_messages:
        return (
            "the plugin is connected and what it sends is not understood: it is of another "
            "version, or the engine's numbers are impossible (KV cache in use below 0 or no "
            "number); restart the engine"
        )
    if facts.tokens_advancing and not facts.records_seen:
        return (
            "the plugin is connected and the engine's page counts tokens, yet no step is reported: "
            "the engine's stats go elsewhere (a second API server, or its data-parallel size was "
            "changed at run time, which drops plugins); restart the engine"
        )
    return None


def _explain_absence(facts: SilenceFacts) -> str:
    if facts.refused:
        return (
            f"{facts.refused} connections to the steps socket came from processes outside the "
            "engine's session: start the engine through disagg-node, without a wrapper that "
            "makes a session of its own"
        )
    if facts.vllm_plugins is not None and PLUGIN_NAME not in facts.vllm_plugins.split(","):
        return (
            f"VLLM_PLUGINS={facts.vllm_plugins!r} in the engine's environment leaves our plugin "
            f"out: add {PLUGIN_NAME} to it (comma-separated, no spaces) or unset it"
        )
    if facts.hello_flags is not None:
        return (
            "the plugin was connected and hung up while the engine lives: see the engine's log; "
            "it tries again every second"
        )
    return (
        "the plugin never connected: the engine must keep PYTHONPATH and "
        f"{wire.SOCKET_ENVIRONMENT} as we set them (python -I and -E, and some wrappers, drop "
        f"them) and its vLLM must know the plugin group {PLUGIN_GROUP}; see the engine's log"
    )
