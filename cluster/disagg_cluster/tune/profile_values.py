"""Tuning results as a profile, written by `--profile` and printed by `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_cluster.planner.capacity.learned.tune_profile import (
    VERSION,
    TimedContext,
    TimedDecode,
    TimedLength,
    TimedPrefill,
    TimedSize,
    TuneProfile,
)
from disagg_cluster.tune.decode_tuning import DecodeTuning
from disagg_cluster.tune.prefill_tuning import LengthTuning, PrefillTuning
from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.model import EnginePage


def prefill_part(found: PrefillTuning) -> TimedPrefill | None:
    """The prefill part; None if nothing was timed."""
    lengths = tuple(_length(found, each) for each in found.lengths if each.points)
    if not lengths or found.source is None:
        return None
    return TimedPrefill(
        times=found.source.value,
        max_num_batched_tokens=found.max_num_batched_tokens,
        lengths=lengths,
    )


def decode_part(found: DecodeTuning) -> TimedDecode | None:
    """The decode part; None if nothing was timed."""
    contexts = tuple(
        TimedContext(
            context_tokens=each.context_tokens,
            complete=each.complete,
            steps=_steps(each.points),
            requests=each.estimate.requests,
            crowded_at=each.crowded_at,
        )
        for each in found.contexts
        if each.points or each.crowded_at is not None
    )
    if not contexts:
        return None
    return TimedDecode(
        target_seconds=found.target_seconds, max_num_seqs=found.max_num_seqs, contexts=contexts
    )


def profile_of(
    model_name: str,
    url: str,
    page: EnginePage | None,
    *,
    prefill: TimedPrefill | None = None,
    decode: TimedDecode | None = None,
) -> TuneProfile:
    """A profile of the given parts."""
    return TuneProfile(
        disagg_node_profile=VERSION,
        model_name=model_name,
        engine=url,
        engine_kind=page.kind if page else None,
        kv_cache_tokens=page.kv_cache_tokens if page else None,
        prefill=prefill,
        decode=decode,
    )


def profile_value(profile: TuneProfile) -> Mapping[str, object]:
    """The profile as JSON values, without unknown ones."""
    return profile.model_dump(mode="json", exclude_none=True)


def _length(found: PrefillTuning, length: LengthTuning) -> TimedLength:
    known = length.estimate
    timed = TimedLength(
        prompt_tokens=length.prompt_tokens,
        complete=length.complete,
        steps=_steps(length.points),
        concurrency=found.concurrency(length),
        ttft_seconds=found.ttft_seconds(length),
    )
    if known is None:
        return timed
    update = {"best_tokens_per_second": round(known.best_tokens_per_second, 1)}
    # Omitted if the exporter would not conclude a knee.
    if known.limit is not None and known.limit.knee_tokens is not None:
        update |= {
            "knee_tokens": round(known.knee_tokens, 1),
            "knee_low_tokens": round(known.low_tokens, 1),
            "knee_high_tokens": round(known.high_tokens, 1),
            "knee_tokens_per_second": round(known.knee_tokens_per_second, 1),
        }
    return timed.model_copy(update=update)


def _steps(points: Sequence[Point]) -> tuple[TimedSize, ...]:
    return tuple(
        TimedSize(
            size=round(point.size),
            seconds=point.seconds,
            samples=point.samples,
            scatter=round(point.scatter, 4),
        )
        for point in points
    )
