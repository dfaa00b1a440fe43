"""Users that arrive at random at an engine in this process."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Any

from bench.gpu_steps.sweep import WORDS, add
from bench.gpu_steps.watch import StepWatch


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second, mean lengths (log-normal), and the tokens that a step may take."""

    name: str
    per_second: float
    prompt_tokens: float
    output_tokens: float
    step_tokens: int


LOADS = (
    Load("chat", 11.0, 1000, 200, 8192),
    Load("chat-2048", 11.0, 1000, 200, 2048),
    Load("documents", 2.2, 8000, 100, 8192),
    Load("documents-512", 1.6, 6000, 100, 512),
    Load("writing", 10.0, 200, 500, 8192),
)
_SPREAD = 0.7
_LONGEST = 12_000


def play(engine: Any, watch: StepWatch, load: Load, seconds: float, dice: random.Random) -> None:
    """Serve the load for so long; requests that are not over then are aborted."""
    scheduler = engine.engine_core.engine_core.scheduler
    usual = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = min(load.step_tokens, usual)
    watch.part = load.name
    begun = time.monotonic()
    due, number = 0.0, 0
    names: list[str] = []
    while (passed := time.monotonic() - begun) < seconds:
        while due <= passed:
            names.append(f"{load.name}-{number}")
            prompt = dice.choices(range(3, WORDS), k=length(dice, load.prompt_tokens))
            add(engine, names[-1], prompt, length(dice, load.output_tokens))
            number += 1
            due += dice.expovariate(load.per_second)
        if engine.has_unfinished_requests():
            engine.step()
        else:
            time.sleep(max(0.0, due - passed))  # nothing else can arrive before
    engine.abort_request(names)
    watch.part = "end"
    while engine.has_unfinished_requests():
        engine.step()
    scheduler.max_num_scheduled_tokens = usual


def length(dice: random.Random, mean: float) -> int:
    """Draw a number of tokens."""
    drawn = dice.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD)
    return max(2, min(round(drawn), _LONGEST))
