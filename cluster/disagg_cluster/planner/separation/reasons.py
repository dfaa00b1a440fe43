"""The reasons of a verdict, in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.separation.pools import MixedEngines, SplitPools
from disagg_cluster.planner.separation.verdict import WORTH, Gain
from disagg_exporter.model.counted import agreeing, counted

_LITTLE = 0.02
BOUND_WORDS = {
    "ttft": "the time to first token",
    "itl": "the time between tokens",
    "kv": "room in the cache",
    "max_num_seqs": "the requests allowed at once",
    "compute": "what they can compute",
    "unseen": "how far their steps are known",
    "link": "the links that carry KV",
}
"""The limit reached first."""


def reasons(
    gain: Gain, mixed: MixedEngines, split: SplitPools, gpus: int, interference_gain: float | None
) -> tuple[str, ...]:
    """What was compared, what limits each side, what whole engines cost, and the uncertainty."""
    return tuple(_reasons(gain, mixed, split, gpus, interference_gain))


def engines_in_words(engines: int, role: str, shape: EngineShape) -> str:
    """Engines and their GPUs, as `3 prefill engines of 2 x NVIDIA H100`."""
    return f"{counted(engines, f'{role} engine')} of {shape.gpus} x {shape.gpu_name}"


def _reasons(
    gain: Gain, mixed: MixedEngines, split: SplitPools, gpus: int, interference_gain: float | None
) -> Iterator[str]:
    verb = "takes" if mixed.engines == 1 else "take"
    yield (
        f"{engines_in_words(mixed.engines, 'mixed', mixed.shape)} {verb} "
        f"{mixed.requests_per_second:.3g} requests/s, bound by {BOUND_WORDS[mixed.bound]}"
    )
    of_pool = "" if split.limited_by == "link" else f" of {split.limited_by}"
    yield (
        f"{engines_in_words(split.prefill_engines, 'prefill', split.prefill)} and "
        f"{engines_in_words(split.decode_engines, 'decode', split.decode)} take "
        f"{split.requests_per_second:.3g}, bound by {BOUND_WORDS[split.bound]}{of_pool}"
    )
    if split.transfer_seconds:
        yield f"the KV of a prompt travels {split.transfer_seconds * 1e3:.3g} ms"
    if split.granularity_loss > _LITTLE:
        yield (
            f"whole engines cost {split.granularity_loss:.0%}: GPUs that could be divided between "
            f"the phases would take {split.requests_per_second / (1 - split.granularity_loss):.3g} "
            "requests/s"
        )
    idle = (gpus - mixed.engines * mixed.shape.gpus, gpus - split.gpus)
    for count, kind in zip(idle, ("mixed", "separate"), strict=True):
        if count:
            are = agreeing(count, "is", "are")
            yield f"{count} of {counted(gpus, 'GPU')} {are} left over when {kind}"
    if interference_gain is not None:
        yield (
            "by the time that the engines lost to mixed steps, without any model, the gain is "
            f"{interference_gain:.2f} at least"
        )
    bounds = (("mixed", mixed.bound), ("separate", split.bound))
    if unseen := [kind for kind, bound in bounds if bound == "unseen"]:
        yield (
            f"how much {' and '.join(unseen)} engines serve at most was never seen: it may be more"
        )
    elif gain.worth_it is None:
        yield (
            f"the gain lies between {gain.low:.2f} and {gain.high:.2f}, which is neither surely a "
            f"gain nor surely below {1 + WORTH:.1f}"
        )
