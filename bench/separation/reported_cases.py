"""The verdicts on cases that users and NVIDIA reported, with loads and intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.planner.capacity.priced_costs import SHEET_ERROR, priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.engines import Engines
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.separation import separation
from disagg_cluster.planner.separation.verdict import UndecidedSeparation
from disagg_cluster.simulator.engine.hardware import (
    GPT_OSS_120B,
    H100,
    H200,
    LLAMA_70B,
    Gpu,
    Model,
)

_NVLINK = KvLink(200e9, 0.002)
_NETWORK = KvLink(40e9, 0.002)
# vLLM's default on GPUs of this size.
_MOST_REQUESTS = 1024


@dataclass(frozen=True, slots=True)
class ReportedCase:
    """A case, and the group sizes that each role may have."""

    name: str
    gpu: Gpu
    model: Model
    gpus: int
    mixed: tuple[int, ...]
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    targets: Targets
    link: KvLink


def _cases() -> Iterator[ReportedCase]:
    for prompt, output in ((1024, 1024), (8192, 1024)):
        for itl_seconds in (0.008, 0.015, 0.03):
            targets = Targets(2.0, itl_seconds)
            yield ReportedCase(
                "gpt-oss-120b, TP8 against TP4 + TP4 (dynamo#3774)",
                *(H200, GPT_OSS_120B, 8, (8,), (4,), (4,), prompt, output, targets, _NVLINK),
            )
    for gpu in (H100, H200):
        for gpus, link in ((8, _NVLINK), (16, _NETWORK)):
            for itl_seconds in (0.03, 0.06):
                yield ReportedCase(
                    f"Llama-3.3-70B BF16 on {gpus // 8} node{'s' * (gpus > 8)}, groups of 4",
                    *(gpu, LLAMA_70B, gpus, (4,), (4,), (4,), 8192, 1024),
                    Targets(5.0, itl_seconds),
                    link,
                )


def answers() -> Iterator[str]:
    """Yield each case with its load, verdict and reasons, and which prices are by data sheets."""
    for case in _cases():
        mix = RequestMix(
            1.0,
            case.prompt_tokens,
            case.output_tokens,
            prompt_dispersion=0.0,
            output_dispersion=0.0,
        )
        mixed, prefill, decode = (
            [
                priced_costs(case.gpu, case.model, size, max_num_seqs=_MOST_REQUESTS)
                for size in sizes
            ]
            for sizes in (case.mixed, case.prefill, case.decode)
        )
        sheets = sorted(
            {
                costs.shape.gpus
                for costs in (*mixed, *prefill, *decode)
                if costs.relative_error >= SHEET_ERROR
            }
        )
        engines = Engines(mixed, prefill, decode)
        verdict = separation(engines, mix, case.targets, case.gpus, case.link)
        head = (
            f"{case.name}, {case.gpus} x {case.gpu.name}, {case.prompt_tokens}/"
            f"{case.output_tokens} tokens, TTFT {case.targets.ttft_seconds:g} s, "
            f"ITL {case.targets.itl_seconds * 1e3:g} ms: "
        )
        if isinstance(verdict, UndecidedSeparation):
            yield f"{head}undecided: lacks {verdict.reason}"
            continue
        gain = verdict.gain
        yield f"{head}{verdict.advice} ({gain.ratio:.2f}, {gain.low:.2f} to {gain.high:.2f})"
        yield from (f"    {reason}" for reason in verdict.reasons)
        if sheets:
            groups = " and ".join(str(size) for size in sheets)
            yield f"    no price table for groups of {groups}: priced by data sheets"
