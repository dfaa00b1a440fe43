"""The profile that `disagg-node tune` writes: measured step times of one engine.

JSON, read as YAML so that each problem has its line ([tuning.md](docs/tuning.md) has the keys).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.config.values import Count, Section, Text
from disagg_cluster.nodefile.draft import validated
from disagg_cluster.nodefile.yaml_positions import read_yaml_file
from disagg_exporter.errors import DisaggError

VERSION: Literal[1] = 1

_Number = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
_Rate = Annotated[_Number, Field(description="tokens a second, a number above 0")]
_Size = Annotated[_Number, Field(description="a number of tokens, above 0")]


class TimedSize(Section):
    """Steps of one size: their median time."""

    size: Count = Field(description="tokens or requests of a step, 1 or more")
    seconds: _Number = Field(description="seconds, a number above 0")
    samples: Count = Field(default=1, description="a number of steps, 1 or more")
    scatter: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=0.0, description="their relative deviation, a number from 0 up"
    )


Curve = Annotated[tuple[TimedSize, ...], Field(min_length=1, strict=False)]


class TimedLength(Section):
    """Prefill steps with prompts of one length, and where their rate saturates."""

    prompt_tokens: Count = Field(description="tokens of a prompt, 1 or more")
    complete: bool = True
    steps: Curve = Field(description="a list of sizes with their seconds")
    knee_tokens: _Size | None = None
    knee_low_tokens: _Size | None = None
    knee_high_tokens: _Size | None = None
    knee_tokens_per_second: _Rate | None = None
    best_tokens_per_second: _Rate | None = None
    concurrency: Count | None = Field(default=None, description="a number of prompts, 1 or more")
    ttft_seconds: _Number | None = Field(default=None, description="seconds, a number above 0")


class TimedPrefill(Section):
    """The result of `tune prefill`; `times` says whose clock measured its seconds."""

    times: Literal["page", "client", "tokens"] = Field(description="one of page, client, tokens")
    max_num_batched_tokens: Count | None = Field(default=None, description="tokens, 1 or more")
    lengths: Annotated[tuple[TimedLength, ...], Field(min_length=1, strict=False)] = Field(
        description="a list of prompt lengths"
    )


class TimedContext(Section):
    """Decode steps with contexts of one length, and the largest batch within the target.

    `crowded_at` is the most requests that the engine ran at once, if it would not run more.
    """

    context_tokens: Count = Field(description="KV tokens of a request, 1 or more")
    complete: bool = True
    steps: Annotated[tuple[TimedSize, ...], Field(strict=False)] = Field(
        description="a list of batches with their seconds"
    )
    requests: Count | None = Field(default=None, description="a number of requests, 1 or more")
    crowded_at: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="a number of requests, 0 or more"
    )


class TimedDecode(Section):
    """The result of `tune decode`."""

    target_seconds: _Number = Field(description="seconds, a number above 0")
    max_num_seqs: Count | None = Field(default=None, description="requests, 1 or more")
    contexts: Annotated[tuple[TimedContext, ...], Field(min_length=1, strict=False)] = Field(
        description="a list of contexts"
    )


class TuneProfile(Section):
    """A whole profile of one engine; a phase that was not probed is absent."""

    disagg_node_profile: Literal[1] = Field(description=f"the number {VERSION}")
    model_name: Text = Field(description="the name that the model is served under")
    engine: Text | None = Field(default=None, description="the address of the engine, text")
    engine_kind: Text | None = Field(default=None, description="the kind of the engine, text")
    kv_cache_tokens: _Size | None = None
    prefill: TimedPrefill | None = None
    decode: TimedDecode | None = None


def read_profile(path: Path) -> TuneProfile:
    """Read a profile.

    Raises:
        ConfigError: It cannot be used; all its problems are in the error.
    """
    document = read_yaml_file(path)
    findings: list[Finding] = list(document.findings)
    profile: TuneProfile | None = None
    if document.value is not None:
        _, profile, _ = validated(document.value, TuneProfile, findings)
    elif not findings:
        findings.append(Finding((), "the file is empty"))
    if profile is not None:
        findings += _contradictions(profile)
    if findings or profile is None:
        raise config_error(findings, str(path), document.lines)
    return profile


def _contradictions(profile: TuneProfile) -> Iterator[Finding]:
    """Problems that no value shows alone."""
    if profile.prefill is None and profile.decode is None:
        yield Finding((), "neither `prefill` nor `decode` was timed")
    curves = [
        *(("prefill", "lengths", n, each.steps) for n, each in enumerate(_lengths(profile))),
        *(("decode", "contexts", n, each.steps) for n, each in enumerate(_contexts(profile))),
    ]
    for phase, parts, number, steps in curves:
        sizes = [step.size for step in steps]
        if len(set(sizes)) < len(sizes):
            yield Finding((phase, parts, number, "steps"), "a size appears twice")


def _lengths(profile: TuneProfile) -> tuple[TimedLength, ...]:
    return profile.prefill.lengths if profile.prefill else ()


def _contexts(profile: TuneProfile) -> tuple[TimedContext, ...]:
    return profile.decode.contexts if profile.decode else ()


class ProfileMismatchError(DisaggError):
    """Two profiles of different models cannot be merged."""

    exit_code = 2


def merged(old: TuneProfile, new: TuneProfile) -> TuneProfile:
    """Return the new profile, with what it lacks taken from the old one.

    Raises:
        ProfileMismatchError: They are of different models.
    """
    if old.model_name != new.model_name:
        raise ProfileMismatchError(
            f"the profile is of {old.model_name}, and what was timed is {new.model_name}: "
            "name another file"
        )
    kept = {
        name: getattr(old, name)
        for name in ("prefill", "decode", "kv_cache_tokens", "engine_kind")
        if getattr(new, name) is None
    }
    return new.model_copy(update=kept)
