"""Tuning results as text: tables, recommended settings, and a progress line."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.host.columns import columns
from disagg_cluster.tune.decode_tuning import ContextTuning, DecodeTuning
from disagg_cluster.tune.prefill_prober import TimeSource
from disagg_cluster.tune.prefill_tuning import LengthTuning, PrefillTuning
from disagg_exporter.model.counted import counted

_CLOCKS = {
    TimeSource.PAGE: "times by the engine's own clock, from its page",
    TimeSource.CLIENT: "times by our clock, the way to the engine and back included: its page does "
    "not clock prompts",
    TimeSource.TOKENS: "times by our clock, from the token of the step ahead: the engine launches "
    "a step while the one before runs",
}


def prefill_text(found: PrefillTuning) -> str:
    """The knee by prompt length, the curve of each, and the recommended setting."""
    parts = []
    for length in found.lengths:
        parts += [*_curve_lines(length), ""]
    rows: list[tuple[str, ...]] = [
        ("PROMPT", "KNEE", "BETWEEN", "RATE THERE", "BEST RATE", "PROMPTS A STEP", "TTFT")
    ]
    rows += [_knee_row(found, length) for length in found.lengths]
    parts.append(columns(rows))
    if found.source is not None:
        parts.append(_CLOCKS[found.source])
    parts.append(_prefill_advice(found))
    return "\n".join(parts)


def _curve_lines(length: LengthTuning) -> Iterator[str]:
    estimate = length.estimate
    # Marked only if the exporter would conclude one.
    knee = estimate.limit.knee_tokens if estimate and estimate.limit else None
    yield f"Prompts of {length.prompt_tokens} tokens: {counted(len(length.probed.probes), 'probe')}"
    best = max((p.size / p.seconds for p in length.points), default=1.0)
    rows = [("  STEP", "TIME", "TOKENS", "STEPS", "")]
    marked = False
    for point in length.points:
        rate = point.size / point.seconds
        bar = "█" * max(1, round(30 * rate / best))
        here = knee is not None and not marked and point.size >= knee
        marked = marked or here
        rows.append(
            (
                f"  {point.size:.0f}",
                seconds_text(point.seconds),
                f"{rate:,.0f}/s",
                str(point.samples),
                bar + (" knee" if here else ""),
            )
        )
    yield columns(rows)


def _knee_row(found: PrefillTuning, length: LengthTuning) -> tuple[str, ...]:
    known, prompt = length.estimate, str(length.prompt_tokens)
    if known is None:
        return (prompt, "not known", "-", "-", "-", "-", "-")
    concurrency, ttft = found.concurrency(length), found.ttft_seconds(length)
    best = f"{known.best_tokens_per_second:,.0f}/s"
    if known.limit is None or known.limit.knee_tokens is None:
        why = "not seen" if known.limit is None else "below all"
        return (prompt, why, "-", "-", best, "-", "-")
    return (
        prompt,
        f"{known.knee_tokens:.0f} tokens",
        f"{known.low_tokens:.0f}-{known.high_tokens:.0f}",
        f"{known.knee_tokens_per_second:,.0f}/s",
        best,
        "-" if concurrency is None else str(concurrency),
        "-" if ttft is None else seconds_text(ttft),
    )


def _prefill_advice(found: PrefillTuning) -> str:
    lines = []
    if found.none_whole:
        lines.append(
            "No two prompts were computed in one step, so no step can be filled: the engine runs "
            "one request at once, deals the prompts of a request out to several ranks or servers, "
            "or serves others all the time (--live)."
        )
    for length in found.lengths:
        known = length.estimate
        if known is None:
            why = "too little was timed" if length.points else "nothing was timed"
        elif known.limit is None:
            why = (
                f"the rate still rises at steps of {length.probed.sizes[-1]} tokens, the largest "
                "that were timed: --largest, or a larger limit of the engine, shows more"
            )
        elif known.limit.knee_tokens is None:
            why = f"steps of {length.probed.sizes[0]} tokens saturate it already"
        else:
            continue
        lines.append(f"Prompts of {length.prompt_tokens} tokens have no knee here: {why}.")
    tokens = found.max_num_batched_tokens
    if tokens is not None:
        longest = max(found.lengths, key=lambda each: each.prompt_tokens)
        several = found.concurrency(found.lengths[0])
        lines.append(
            f"Set max_num_batched_tokens to {tokens}: smaller steps lose rate, larger ones only "
            f"make prompts wait. So many prompts of {found.lengths[0].prompt_tokens} tokens fill "
            f"a step: {several}. "
            f"Beyond that, requests queue; the longest prompts timed ({longest.prompt_tokens}) "
            f"take {_or_dash(found.ttft_seconds(longest))}."
        )
    return "\n".join(lines)


def _or_dash(seconds: float | None) -> str:
    return "a time that was not seen" if seconds is None else seconds_text(seconds)


def decode_text(found: DecodeTuning) -> str:
    """The batch within the target by context, the curve of each, and the recommended setting."""
    parts = []
    for context in found.contexts:
        parts += [*_batch_lines(context), ""]
    rows: list[tuple[str, ...]] = [
        ("CONTEXT", "BATCH WITHIN TARGET", "TIMED WITHIN", "TIMED BEYOND", "RAN AT ONCE")
    ]
    rows += [_batch_row(context) for context in found.contexts]
    parts += [
        columns(rows),
        "times by our clock, from token to token",
        *_decode_advice(found),
    ]
    return "\n".join(parts)


def _batch_lines(context: ContextTuning) -> Iterator[str]:
    probes = counted(len(context.probed.probes), "probe")
    yield f"Contexts of {context.context_tokens} tokens: {probes}"
    rows = [("  BATCH", "STEP", "TOKENS", "STEPS", "")]
    most = max((point.seconds for point in context.points), default=1.0)
    rows += [
        (
            f"  {point.size:.0f}",
            seconds_text(point.seconds),
            f"{point.size / point.seconds:,.0f}/s",
            str(point.samples),
            "█" * max(1, round(30 * point.seconds / most))
            + ("" if point.seconds <= context.target_seconds else " too slow"),
        )
        for point in context.points
    ]
    yield columns(rows)


def _batch_row(context: ContextTuning) -> tuple[str, ...]:
    known = context.estimate
    crowded = context.crowded_at
    return (
        str(context.context_tokens),
        "none" if known.requests is None else counted(known.requests, "request"),
        "-" if known.quick is None else str(known.quick),
        "-" if known.slow is None else str(known.slow),
        "-" if crowded is None else f"{crowded} at most",
    )


def _decode_advice(found: DecodeTuning) -> Iterator[str]:
    target = seconds_text(found.target_seconds)
    for context in found.contexts:
        known, tokens = context.estimate, context.context_tokens
        if not context.points:
            why = "nothing was timed"
            if context.crowded_at is not None:
                why = "the engine runs no such request"
            elif context.cut_at is not None:
                why = "requests end before their steps can be timed"
            yield f"Contexts of {tokens} tokens: {why}."
        elif known.quick is None:
            yield f"Contexts of {tokens} tokens: a single request misses {target}."
        elif known.slow is None:
            why = "more were not timed (--largest)"
            if context.cut_at is not None:
                why = (
                    f"with more than {context.cut_at}, the first requests end before the last "
                    "begin: shorter contexts leave room for more output"
                )
            elif context.crowded_at is not None:
                why = f"it ran {context.crowded_at} at once at most"
            yield f"Contexts of {tokens} tokens: no batch missed {target}; {why}."
    if found.others:
        yield (
            f"{counted(found.others, 'request')} of others ran beside the first batch (--live), so "
            "the engine ran more at once than each batch says, and nothing is recommended: take it "
            "out of service to learn its limit."
        )
    if found.ranks > 1:
        yield (
            f"Its {found.ranks} data-parallel ranks divided each batch among them, and a limit is "
            "a rank's: nothing is recommended. Start it with one rank to learn its limit."
        )
    most = found.max_num_seqs
    if most is not None and any(each.estimate.slow is not None for each in found.contexts):
        yield (
            f"Set max_num_seqs to {most}: the most requests that get their tokens within {target} "
            "at each of the contexts that missed it with more."
        )
    elif most is not None:
        yield (
            f"Set max_num_seqs to {most}, or leave it: the engine runs no more at once, and these "
            f"get their tokens within {target}."
        )


def prefill_progress(length: LengthTuning, seconds_a_probe: float) -> str:
    """One line: what is probed, the result so far, and how long a probe took on average."""
    known = length.estimate
    knee = "" if known is None else f", knee {known.low_tokens:.0f}-{known.high_tokens:.0f} tokens"
    return (
        f"prompts of {length.prompt_tokens}: "
        f"{_made(len(length.probed.probes), length.most_probes, seconds_a_probe)}{knee}"
    )


def decode_progress(context: ContextTuning, seconds_a_probe: float) -> str:
    """One line: what is probed, the result so far, and how long a probe took on average."""
    known = context.estimate
    slow = "?" if known.slow is None else str(known.slow)
    return (
        f"contexts of {context.context_tokens}: "
        f"{_made(len(context.probed.probes), context.most_probes, seconds_a_probe)}"
        f", batch {known.quick or 0}-{slow}"
    )


def _made(made: int, most: int, seconds_a_probe: float) -> str:
    # Later ones are larger: how long they will take is not known.
    return f"probe {made} of at most {most}, {seconds_text(seconds_a_probe)} each so far"


def seconds_text(seconds: float) -> str:
    """A duration in a suitable unit."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
