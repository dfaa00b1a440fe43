"""How long each step held its devices, where the engine's own figure is only a wait (A2).

An engine that launches the model's kernels in its own process, as vLLM does on one GPU, times a
step from when it begins to wait for the GPU: what it took to launch the kernels, during which the
GPU computes already, is missing. With async scheduling the next step is launched before that wait,
too. So steps reach from record to record, and there are three corrections:

* A record of a step that the engine did not wait for is late: the launch of the next step delayed
  it. If the step only decoded, it took as long as decode steps did lately that were waited for, and
  the rest is the next step's.
* A record of a step with a prompt is late, too: the engine does more before it tells of it, such as
  entering the prompt's blocks in its cache. A decode step that follows is shorter by as much than
  decode steps usually are. The middle one of what was missing lately is taken off a step with a
  prompt and given to the one after it.
* The first step after a rest has no record before it. It began when its first request was
  scheduled, which is known of a request whose first token it made. If the prompt goes on in further
  steps, it is taken to have begun as long before the wait as the last such step did, and what that
  was off by is corrected in the step that makes the first token.
"""

from __future__ import annotations

from typing import NamedTuple

from . import wire
from .counting import Facts

_KEPT = 15


class Held(NamedTuple):
    """What is known after a record.

    `since_ns`: the time before it is accounted for. `exact`: the last step ended then. `decode_ns`:
    the lengths of the last decode steps with both ends known. `prompt_ns`: when the record was
    made, if its step had a prompt; otherwise 0. `late_ns`: by how much such records were late
    lately. `launch_ns`: how long before its wait a first prompt began. `begun_ns`: when the first
    prompt after a rest is taken to have begun, while that is not known, and `rested_ns` when the
    rest began; otherwise 0.
    """

    since_ns: int = 0
    exact: bool = False
    decode_ns: tuple[int, ...] = ()
    prompt_ns: int = 0
    late_ns: tuple[int, ...] = ()
    launch_ns: int = 0
    begun_ns: int = 0
    rested_ns: int = 0


def next_held(
    known: Held,
    t_ns: int,
    facts: Facts,
    *,
    rested: bool,
    counted: bool,
    late: bool,
    prompt_ns: int = 0,
) -> tuple[int, Held]:
    """Return how long the step of a record held its devices, and what is known after it.

    Args:
        known: What was known before it.
        t_ns: When the record was made.
        facts: Those of the record.
        rested: The record before left no work.
        counted: The record is of a step; otherwise of the engine's state.
        late: The next step is launched before the record is made (async scheduling).
        prompt_ns: From scheduling to first token, of a request whose first token the step made, if
            nothing ran when it was scheduled; 0 if it is not known.
    """
    if not counted:
        if leaves_work(facts) and not rested:
            return 0, known
        held_ns = 0 if rested else max(t_ns - known.since_ns, 0)
        return held_ns, known._replace(since_ns=t_ns, exact=False, prompt_ns=0)
    waited = facts.elapsed_ns >= wire.NO_WAIT_NS or not late
    if rested:
        return _first(known, t_ns, facts, waited=waited, prompt_ns=prompt_ns)
    held_ns = max(t_ns - known.since_ns, 0)
    if known.begun_ns and prompt_ns:
        begun_ns = max(t_ns - prompt_ns, known.rested_ns)
        # No more was added than the launch. A prompt that began later is another one.
        longer_ns = max(known.begun_ns - begun_ns, -known.launch_ns)
        held_ns = max(held_ns + longer_ns, 0)
        launch_ns = known.launch_ns + longer_ns
        known = known._replace(begun_ns=0, rested_ns=0, launch_ns=launch_ns)
    if facts.context_tokens or facts.encoder_inputs:
        late_ns = min(_middle(known.late_ns), max(held_ns - facts.elapsed_ns, 0))
        return held_ns - late_ns, known._replace(
            since_ns=t_ns - late_ns, exact=waited, prompt_ns=t_ns
        )
    if not facts.generation_tokens:
        return held_ns, known._replace(since_ns=t_ns, exact=waited, prompt_ns=0)
    if waited:
        return held_ns, _after_decode(known, t_ns, held_ns)
    usual_ns = _middle(known.decode_ns)
    if not usual_ns or usual_ns >= held_ns:
        return held_ns, known._replace(since_ns=t_ns, exact=False, prompt_ns=0)
    return usual_ns, known._replace(since_ns=known.since_ns + usual_ns, exact=True, prompt_ns=0)


def _after_decode(known: Held, t_ns: int, held_ns: int) -> Held:
    """Return what is known after the record of a decode step that was waited for."""
    lengths, late = known.decode_ns, known.late_ns
    if not known.prompt_ns:
        if known.exact:
            lengths = (*lengths[1 - _KEPT :], held_ns)
    elif lengths:
        missing_ns = _middle(lengths) - (t_ns - known.prompt_ns)
        late = (*late[1 - _KEPT :], max(missing_ns, 0))
    return known._replace(since_ns=t_ns, exact=True, decode_ns=lengths, prompt_ns=0, late_ns=late)


def _middle(kept_ns: tuple[int, ...]) -> int:
    """Return the median, the greater of two in the middle; 0 if nothing is kept."""
    return sorted(kept_ns)[len(kept_ns) // 2] if kept_ns else 0


def _first(
    known: Held, t_ns: int, facts: Facts, *, waited: bool, prompt_ns: int
) -> tuple[int, Held]:
    """The same for the first step after a rest."""
    held_ns, launch_ns, begun_ns = facts.elapsed_ns, known.launch_ns, 0
    if facts.context_tokens and prompt_ns:
        held_ns = max(held_ns, prompt_ns)
        launch_ns = held_ns - facts.elapsed_ns
    elif facts.context_tokens:
        held_ns += launch_ns
    held_ns = min(held_ns, max(t_ns - known.since_ns, facts.elapsed_ns))
    if facts.context_tokens and not prompt_ns:
        begun_ns = t_ns - held_ns
    return held_ns, known._replace(
        since_ns=t_ns,
        exact=waited,
        prompt_ns=t_ns if facts.context_tokens else 0,
        launch_ns=launch_ns,
        begun_ns=begun_ns,
        rested_ns=known.since_ns if begun_ns else 0,
    )


def leaves_work(facts: Facts) -> bool:
    """Return whether requests run or wait after a record."""
    return bool(facts.running or facts.waiting)
