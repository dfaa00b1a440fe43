"""How well an engine's GPU-seconds are known, in words; pure."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.inspect.views import EngineView


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What an engine's numbers are worth; `step` makes them better, by `gain` (0 to 9)."""

    exact: bool
    text: str
    step: str = ""
    gain: int = 0


_PLUGIN = (
    'start it with our plugin: `eval "$(disagg-node plugin env)"` in its shell, then its own '
    "command with --enable-logging-iteration-details"
)
_PLUGIN_IN_POD = (
    'start it with our plugin: the annotation disagg-node/steps: "true" on its pod, and '
    "`disagg-node plugin copy` in an init container (docs/kubernetes-engines.md)"
)


def accuracy(engine: EngineView) -> Accuracy:
    """What the numbers of an engine are worth, by how they are found."""
    match engine.method:
        case "steps" | "fpm":
            return _by_step(engine)
        case "engine_timers":
            text = "by the engine's own timers; a step of both phases counts as prefill there"
            return Accuracy(False, text)
        case "page":
            text = f"inexact: device activity, divided by the tokens of its page{_error(engine)}"
            return _inexact(engine, text, gain=4)
        case "page_cpu":
            text = f"inexact: CPU time, divided by the tokens of its page{_error(engine)}"
            return _inexact(engine, text, gain=4)
        case "follower":
            text = "inexact: a follower, its devices' activity, by its leader's shares or its role"
            return Accuracy(False, text)
        case _ if engine.follows is not None:
            return Accuracy(
                False, f"not divided: a follower tells nothing, and {_undivided(engine)}"
            )
        case "role":
            text = f"inexact: all activity of its devices counts as {engine.role}"
            return _inexact(engine, text, gain=5)
        case _:
            text = "not measured: it tells neither steps nor a page that can be used"
            return _inexact(engine, text, gain=6)


def _undivided(engine: EngineView) -> str:
    """Why the time of a follower goes to no phase."""
    if engine.role in ("prefill", "decode"):
        return f"the activity of its devices, which would be {engine.role}, is not read"
    if engine.role == "unknown":
        return "nobody says what it is for"
    return f"its role, {engine.role}, does not say which phase"


def _by_step(engine: EngineView) -> Accuracy:
    lost = f", {engine.lost_records:.0f} records made good" if engine.lost_records else ""
    if engine.split == "model":
        return Accuracy(
            True, f"by every single step{lost}; mixed ones by a cost model{_error(engine)}"
        )
    if engine.split == "tokens":
        text = f"by every single step{lost}; mixed ones by tokens until a cost model is trusted"
        return Accuracy(True, text, "wait: it learns from mixed steps", gain=1)
    return Accuracy(True, f"by every single step{lost}")


def _inexact(engine: EngineView, text: str, gain: int) -> Accuracy:
    # The plugin is vLLM's; what others could tell is theirs to switch on.
    steps = {
        "vllm": _PLUGIN_IN_POD if engine.pod else _PLUGIN,
        "dynamo": "switch its forward pass metrics on (DYN_FORWARDPASS_METRIC_PORT)",
        "sglang": "start it with --enable-forward-pass-metrics",
    }
    return Accuracy(False, text, steps.get(engine.kind, ""), gain)


def _error(engine: EngineView) -> str:
    if engine.residual_ratio is None:
        return ""
    fitted = f" over {engine.fitted_steps:.0f} samples" if engine.fitted_steps else ""
    return f" (error {engine.residual_ratio:.0%}{fitted})"
