"""`disagg-node tune`: the best prefill step and decode batch of an engine."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.cli.tuning.outcome import (
    REQUESTS,
    STEP_TOKENS,
    OutcomeOptions,
    outcome_options,
)
from disagg_cluster.cli.tuning.target import TargetOptions, target_options
from disagg_exporter.errors import EXIT_INTERRUPTED, DisaggError

if TYPE_CHECKING:
    from disagg_cluster.planner.capacity.learned.tune_profile import TuneProfile
    from disagg_cluster.tune.completion_server import CompletionServer
    from disagg_cluster.tune.completions import UniquePrompts
    from disagg_exporter.model import EnginePage

_PROMPTS = (512, 2048, 8192)
_CONTEXTS = (512, 2048, 8192)
_LARGEST_STEP = 8192
_LARGEST_BATCH = 256
_MOST_LENGTHS = 12
_MOST_TOKENS = 1_000_000
_Step = TypeVar("_Step")


def _lengths(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(re.fullmatch(r"\s*\d{1,7}\s*", word) for word in words):
        raise click.BadParameter(f"{text!r} are no lengths: give 512,2048", ctx, param)
    found = sorted({int(word) for word in words})
    if found[0] < 1 or found[-1] > _MOST_TOKENS or len(found) > _MOST_LENGTHS:
        allowed = f"1 to {_MOST_LENGTHS} lengths from 1 to {_MOST_TOKENS} tokens"
        raise click.BadParameter(f"expected {allowed}", ctx, param)
    return tuple(found)


def _latency(ctx: click.Context, param: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)\s*", text)
    seconds = float(found[1]) * (0.001 if found[2] == "ms" else 1.0) if found else 0.0
    if not 0 < seconds <= 60:
        raise click.BadParameter(f"{text!r} is no such time: give 50ms or 0.05s", ctx, param)
    return seconds


@click.command
@click.option(
    "--prompt-tokens",
    callback=_lengths,
    metavar="N,N,…",
    help="Prompt lengths.  [default: those of 512, 2048, 8192 that the engine accepts]",
)
@click.option(
    "--largest",
    type=click.IntRange(64, _MOST_TOKENS),
    help=f"Largest step to time, in tokens.  [default: {_LARGEST_STEP}, or what the engine holds]",
)
@target_options
@outcome_options
def prefill(
    target: TargetOptions,
    outcome: OutcomeOptions,
    prompt_tokens: tuple[int, ...] | None,
    largest: int | None,
) -> None:
    """Find the smallest prefill step that saturates an engine: its knee.

    The knee is where tokens per second first reach nine tenths of the maximum. Sends prompts of
    random tokens, with one output token each, that fill steps of chosen sizes; each next size is
    the most informative one, and it ends when the knee is known to within a fifth. Refuses an
    engine that serves users, unless --live.

    \b
      disagg-node tune prefill --engine http://127.0.0.1:8000
      disagg-node tune prefill --engine prefill-0 --write node.yaml --profile prefill.json
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.tune.prefill_prober import PrefillProber
    from disagg_cluster.tune.prefill_tuning import PrefillTuner
    from disagg_cluster.tune.profile_values import prefill_part, profile_of
    from disagg_cluster.tune.tuning_figure import draw_prefill
    from disagg_cluster.tune.tuning_text import prefill_progress, prefill_text

    server, most_tokens = target.server()
    with server:
        page = _ready(server, target, outcome)
        fitting = _fitting(prompt_tokens, _PROMPTS, most_tokens, 1, "--prompt-tokens")
        room = _room(page, largest or _LARGEST_STEP)
        prober = PrefillProber(server, _prompts(), target.live)
        most_prompt = None if most_tokens is None else most_tokens - 1
        tuner = PrefillTuner(prober, fitting, room, most_prompt)

        progress = Progress()
        tuning = _Tuning(
            run=partial(tuner.run, _paced(progress, prefill_progress)),
            progress=progress,
            text=lambda: prefill_text(tuner.found),
            profile=lambda: profile_of(
                server.model, server.url, page, prefill=prefill_part(tuner.found)
            ),
            draw=lambda path: draw_prefill(tuner.found, path),
            limits=lambda: _limits(STEP_TOKENS, tuner.found.max_num_batched_tokens),
        )
        _carry_out(tuning, server, target, outcome)


@click.command
@click.option("--itl", default="50ms", show_default=True, callback=_latency, metavar="TIME",
              help="The inter-token target, such as 50ms.")  # fmt: skip
@click.option(
    "--context-tokens",
    callback=_lengths,
    metavar="N,N,…",
    help="Context lengths.  [default: those of 512, 2048, 8192 that the engine accepts]",
)
@click.option(
    "--largest",
    type=click.IntRange(1, 8192),
    default=_LARGEST_BATCH,
    show_default=True,
    help="Largest batch to time, in requests.",
)
@target_options
@outcome_options
def decode(
    target: TargetOptions,
    outcome: OutcomeOptions,
    itl: float,
    context_tokens: tuple[int, ...] | None,
    largest: int,
) -> None:
    """Find the largest batch with which an engine keeps the inter-token target.

    Runs as many requests as the batch size at once, measures the time from token to token, and
    cancels them. Each next batch is the most informative one. Refuses an engine that serves users,
    unless --live.

    \b
      disagg-node tune decode --engine http://127.0.0.1:8000 --itl 50ms
      disagg-node tune decode --engine decode-0 --context-tokens 4096 --write node.yaml
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.tune.decode_prober import STEPS, DecodeProber
    from disagg_cluster.tune.decode_tuning import DecodeTuner
    from disagg_cluster.tune.profile_values import decode_part, profile_of
    from disagg_cluster.tune.tuning_figure import draw_decode
    from disagg_cluster.tune.tuning_text import decode_progress, decode_text

    server, most_tokens = target.server()
    with server:
        page = _ready(server, target, outcome)
        least = 2 * STEPS
        fitting = _fitting(context_tokens, _CONTEXTS, most_tokens, least, "--context-tokens")
        prober = DecodeProber(server, _prompts(), most_tokens, target.live)
        tuner = DecodeTuner(prober, fitting, itl, largest)

        progress = Progress()
        tuning = _Tuning(
            run=partial(tuner.run, _paced(progress, decode_progress)),
            progress=progress,
            text=lambda: decode_text(tuner.found),
            profile=lambda: profile_of(
                server.model, server.url, page, decode=decode_part(tuner.found)
            ),
            draw=lambda path: draw_decode(tuner.found, path),
            limits=lambda: _limits(REQUESTS, tuner.found.max_num_seqs),
        )
        _carry_out(tuning, server, target, outcome)


def _ready(
    server: CompletionServer, target: TargetOptions, outcome: OutcomeOptions
) -> EnginePage | None:
    """Check everything possible before the first probe; returns the engine's metrics page."""
    outcome.check(target, server.model, server.url)
    return server.page()


def _at_rest(server: CompletionServer, target: TargetOptions, progress: Progress) -> None:
    """Refuse an engine that serves users, unless --live is given."""
    from disagg_cluster.tune.traffic_guard import refuse_live

    if not target.live:
        progress.say("looking whether it serves anybody")
        refuse_live(server, time.sleep)
    progress.say("the first probe")


@dataclass(frozen=True, slots=True)
class _Tuning:
    """What to run, and accessors for the results found so far."""

    run: Callable[[], object]
    progress: Progress
    text: Callable[[], str]
    profile: Callable[[], TuneProfile]
    draw: Callable[[Path], None]
    limits: Callable[[], Mapping[str, Mapping[str, int]]]


def _carry_out(
    tuning: _Tuning, server: CompletionServer, target: TargetOptions, outcome: OutcomeOptions
) -> None:
    """Probe, print the result and write its outputs; if interrupted, only print it."""
    from disagg_cluster.tune.profile_values import profile_value

    stopped: BaseException | None = None
    # On a signal, the results so far are still printed and running requests cancelled.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _at_rest(server, target, tuning.progress)
        tuning.run()
    except (KeyboardInterrupt, DisaggError) as error:
        stopped = error
    tuning.progress.end()
    known = tuning.profile()
    some = known.prefill is not None or known.decode is not None
    if isinstance(stopped, KeyboardInterrupt) or (stopped is not None and some):
        learned = "what was learned so far:" if some else "nothing was learned"
        click.echo(f"stopped before the end; no file is written; {learned}", err=True)
    if outcome.as_json and (some or stopped is None):
        click.echo(json.dumps(profile_value(known), indent=2, allow_nan=False))
    elif some or stopped is None:
        click.echo(tuning.text())
    if isinstance(stopped, KeyboardInterrupt):
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if stopped is not None:
        raise stopped
    outcome.keep(known, tuning.draw, tuning.limits(), target, server.url)


def _paced(progress: Progress, line: Callable[[_Step, float], str]) -> Callable[[_Step], None]:
    """Show a line after each probe, with the mean duration of a probe."""
    begun_seconds, made = time.monotonic(), [0]

    def show(found: _Step) -> None:
        made[0] += 1
        progress.say(line(found, (time.monotonic() - begun_seconds) / made[0]))

    return show


def _fitting(
    asked: tuple[int, ...] | None,
    usual: Sequence[int],
    most_tokens: int | None,
    written: int,
    option: str,
) -> tuple[int, ...]:
    """The lengths to probe: all those requested, or the usual ones that the engine accepts."""
    longest = None if most_tokens is None else most_tokens - written
    if asked is not None:
        if longest is not None and asked[-1] > longest:
            raise click.UsageError(
                f"{option}: the engine takes at most {max(longest, 0)} tokens beside what it writes"
            )
        return asked
    fitting = tuple(each for each in usual if longest is None or each <= longest)
    if fitting or longest is None:
        return fitting
    if longest < 1:
        raise click.UsageError(f"the engine takes {most_tokens} tokens a request: too few to probe")
    return (longest,)


def _room(page: EnginePage | None, largest: int) -> int:
    """The largest step to time, limited by the engine's cache."""
    if page is None or page.kv_cache_tokens is None:
        return largest
    return max(1, min(largest, int(page.kv_cache_tokens * 0.45)))


def _prompts() -> UniquePrompts:
    from disagg_cluster.tune.completions import UniquePrompts

    return UniquePrompts(random.Random())


def _limits(options: Mapping[str, str], value: int | None) -> Mapping[str, Mapping[str, int]]:
    return {kind: {} if value is None else {option: value} for kind, option in options.items()}
