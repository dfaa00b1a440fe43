"""The gain of separating or merging as text: verdicts, tables and reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from disagg_cluster.host.columns import columns
from disagg_cluster.planner.advice.separation_advice import GpuSeparation, ModelSeparation, Today
from disagg_cluster.planner.outlook.wording import amount, named
from disagg_cluster.planner.separation.reasons import BOUND_WORDS, engines_in_words
from disagg_cluster.planner.separation.verdict import Advice, Gain, UndecidedSeparation
from disagg_exporter.errors import escaped_lines
from disagg_exporter.model.counted import counted

# Planner-file keys that provide a missing input, by how `missing_inputs` begins it.
_FILE_KEYS = {
    "what steps of": "`workers`",
    "the bandwidth of": "`kv_link_bytes_per_second`",
    "the KV bytes": "`kv_bytes_per_token`",
}


def separation_text(models: Sequence[ModelSeparation]) -> str:
    """The text of all models, each with its verdicts first."""
    return escaped_lines("\n\n".join("\n".join(_model(each)) for each in models))


def verdict_words(answer: GpuSeparation) -> str:
    """One line with the verdict, its GPUs, and its gain with the interval."""
    verdict = answer.verdict
    where = _where(answer)
    if isinstance(verdict, UndecidedSeparation):
        return f"undecided{where}; what is missing: {verdict.reason}"
    other = "merged" if answer.today is Today.SEPARATE else "separate"
    advice = verdict.advice.value
    if answer.today is Today.ASSUMED and verdict.advice is Advice.STAY_MIXED:
        advice = "mixed"
    return f"{advice}{where}: {other}, they would take {_gain(verdict.gain)}"


def _where(answer: GpuSeparation) -> str:
    if not answer.gpu_name:
        return "" if answer.gpus is None else f", {counted(answer.gpus, 'GPU')}"
    today = "" if answer.today is Today.ASSUMED else f", {answer.today} today"
    return f", {answer.gpus} x {answer.gpu_name}{today}"


def _gain(gain: Gain) -> str:
    if math.isinf(gain.ratio):
        return "a load at these targets, and as the other way none at all"
    return f"{amount(gain.ratio)} times the load at the same targets ({_interval(gain)})"


def _interval(gain: Gain) -> str:
    """The interval; it lacks an end where a load may be higher than engines were ever seen at."""
    if math.isfinite(gain.high):
        least = f"{amount(gain.low)} to" if gain.low else "at most"
        return f"90 %: {least} {amount(gain.high)}"
    return f"90 %: {amount(gain.low)} or more" if gain.low else "more or less, as far as was seen"


def _model(model: ModelSeparation) -> Iterator[str]:
    yield named(model.key)
    for answer in model.answers:
        yield verdict_words(answer)
    if (load := model.load) is not None:
        mix = load.mix
        cached = f", {amount(mix.cached_tokens)} more cached" if mix.cached_tokens else ""
        yield (
            f"load: {amount(mix.requests_per_second)} requests/s in the mean, "
            f"{amount(load.peak_requests_per_second)} at busy times; prompts of "
            f"{amount(mix.prompt_tokens)} tokens to compute{cached}, outputs of "
            f"{amount(mix.output_tokens)}"
        )
    targets = model.targets
    yield (
        f"targets: {targets.ttft_seconds:g} s to the first token and {targets.itl_seconds:g} s "
        f"between tokens, for {100 * targets.attainment:g} % of all requests"
    )
    for answer in model.answers:
        yield from _figures(model, answer)
    missing = [
        each
        for answer in model.answers
        if isinstance(answer.verdict, UndecidedSeparation)
        for each in answer.verdict.missing
    ]
    keys = [
        key for begin, key in _FILE_KEYS.items() if any(each.startswith(begin) for each in missing)
    ]
    if keys:
        yield f"A planner file can provide what is missing: {', '.join(keys)}."


def _figures(model: ModelSeparation, answer: GpuSeparation) -> Iterator[str]:
    verdict = answer.verdict
    if isinstance(verdict, UndecidedSeparation):
        return
    mixed, split = verdict.mixed, verdict.split
    of_pool = "" if split.limited_by == "link" else f" of {split.limited_by}"
    yield columns(
        [
            ("", "REQUESTS/S", "HOLDS BUSY TIMES", "BOUND BY"),
            (
                "mixed",
                amount(mixed.requests_per_second),
                _yes_or_no(model.holds(mixed.requests_per_second)),
                BOUND_WORDS[mixed.bound],
            ),
            (f"  {engines_in_words(mixed.engines, 'mixed', mixed.shape)}",),
            (
                "separate",
                amount(split.requests_per_second),
                _yes_or_no(model.holds(split.requests_per_second)),
                BOUND_WORDS[split.bound] + of_pool,
            ),
            (f"  {engines_in_words(split.prefill_engines, 'prefill', split.prefill)}",),
            (f"  {engines_in_words(split.decode_engines, 'decode', split.decode)}",),
        ],
        right=(1,),
    )
    for reason in verdict.reasons[2:]:
        yield f"  {reason}"


def _yes_or_no(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[holds]
