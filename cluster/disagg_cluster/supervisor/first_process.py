"""The first process of a container: starts the daemon, restarts it when it dies, reaps orphans.

In a container the daemon cannot be the first process: its death would be the engines' death. This
one does so little that it has no reason to die, and it touches nothing but its own child: engines
left by a dead daemon become its children and run on until the next daemon adopts them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.host.libc import subreaping
from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.transitions import backoff_seconds
from disagg_exporter.errors import DisaggError

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_DRAINING = (signal.SIGTERM, signal.SIGINT)  # The daemon handles these; SIGQUIT only kills it.
_RESET = (*PASSED_ON, signal.SIGPIPE)
_REFUSED = 2  # The command line or the node file is bad, or could not be read.
_GRACE_SECONDS = 10.0

PATIENCE = RestartPolicy(backoff_first_seconds=1.0, backoff_max_seconds=30.0, steady_seconds=60.0)


class InitError(DisaggError):
    """The command cannot be started; the text names it and the reason."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What follows the end of a daemon: an exit with `code`, or a start in `seconds`."""

    code: int | None
    seconds: float = 0.0


def fate(
    status: int,
    *,
    asked: bool,
    engines_left: bool,
    lasted_seconds: float,
    consecutive_crashes: int,
    policy: RestartPolicy = PATIENCE,
) -> tuple[Fate, int]:
    """Return what follows a daemon's end, and how many crashes in a row that makes.

    An end that was asked for, a good end and a bad command line or node file are planned: they are
    passed on. Anything else is a crash, and the engines need a daemon. While engines are left, a
    bad node file counts as a crash, too: our end would be theirs, and the next daemon may be able
    to read it.

    Args:
        status: Its exit code, or minus the signal that ended it.
        asked: Whether we had passed on a signal that asks it to end.
        engines_left: Whether it has left processes.
        lasted_seconds: How long it ran.
        consecutive_crashes: The crashes in a row before this one.
        policy: The waits, and how long a daemon must run to count as steady.
    """
    if asked or status == 0 or (status == _REFUSED and not engines_left):
        return Fate(status if status >= 0 else 128 - status), 0
    consecutive_crashes = 1 if lasted_seconds >= policy.steady_seconds else consecutive_crashes + 1
    return Fate(None, backoff_seconds(consecutive_crashes, policy, 0.0)), consecutive_crashes


def run(
    argv: Sequence[str], say: Callable[[str], None], *, policy: RestartPolicy = PATIENCE
) -> int:
    """Run a daemon until a planned end; return the exit code to end with.

    Args:
        argv: The daemon's program and arguments.
        say: Receives a message about each end and each start but the first.
        policy: How long to wait before the next start.

    Raises:
        InitError: The program cannot be started.
    """
    listened = {signal.SIGCHLD, *PASSED_ON}
    # Blocked signals wait until we fetch them: none is lost, none interrupts us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, listened)
    try:
        # If we are not the first process, be to our descendants what it is: orphans come to us.
        with subreaping():
            return _supervise(argv, listened, say, policy)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _supervise(
    argv: Sequence[str],
    listened: set[signal.Signals],
    say: Callable[[str], None],
    policy: RestartPolicy,
) -> int:
    daemon: int | None = _start(argv)
    consecutive_crashes, seconds = 0, policy.backoff_max_seconds
    while True:
        if daemon is not None:
            began = time.monotonic()
            status, asked = _watch(daemon, listened)
            engines_left = _has_children()
            what, consecutive_crashes = fate(
                status,
                asked=asked,
                engines_left=engines_left,
                lasted_seconds=time.monotonic() - began,
                consecutive_crashes=consecutive_crashes,
                policy=policy,
            )
            if what.code is not None:
                # Asked to end before it handled signals, it was killed and did not end its engines.
                if asked and status < 0 and engines_left:
                    return _drain(argv, signal.Signals(-status), listened, say)
                return what.code
            seconds = what.seconds
            ended = f"by signal {-status}" if status < 0 else f"with exit code {status}"
            although = " although engines are left" if status == _REFUSED else ""
            say(f"the daemon ended {ended}{although}; the next start is in {seconds:.1f} s")
        sign = _wait(seconds, listened)
        if sign is not None:
            say(f"asked to end by {sign.name} while no daemon ran")
            return _drain(argv, sign, listened, say) if _has_children() else 128 + sign
        daemon = None
        try:
            daemon = _start(argv)
        except InitError as error:
            # Another version may just be replacing it; the engines below us depend on us.
            seconds = policy.backoff_max_seconds
            say(f"{error}; the next start is in {seconds:.1f} s")


def _drain(
    argv: Sequence[str],
    sign: signal.Signals,
    listened: set[signal.Signals],
    say: Callable[[str], None],
) -> int:
    """Have a daemon end the engines that a dead one has left; otherwise end them ourselves."""
    if sign not in _DRAINING:
        sign = signal.SIGTERM
    say(f"engines are left: a daemon is started to end them by {sign.name}")
    status = 1
    try:
        # The signal is blocked until it is handled, so that it does not kill the daemon before.
        daemon = _start(argv, (sign,))
        os.kill(daemon, sign)
        status, _ = _watch(daemon, listened)
    except InitError as error:
        say(str(error))
    if status != 0 and _has_children():
        say("it did not: they are asked to end")
        _end_children()
    return status if status >= 0 else 128 - status


def _end_children() -> None:
    """Ask all our children's sessions to end, wait, and kill those that do not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in procfs.children_of(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                # Only a session that the child leads is surely not somebody else's.
                (os.killpg if procfs.session_of(pid) == pid else os.kill)(pid, sign)
        until = time.monotonic() + _GRACE_SECONDS
        while _has_children() and (left := until - time.monotonic()) > 0:
            signal.sigtimedwait({signal.SIGCHLD}, min(left, 1.0))
            _reap(0)


def _has_children() -> bool:
    _reap(0)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _start(argv: Sequence[str], blocked: Sequence[signal.Signals] = ()) -> int:
    try:
        # A separate group: a Ctrl-C in a terminal reaches it through us, and once.
        return os.posix_spawnp(
            argv[0], list(argv), os.environ, setpgroup=0, setsigmask=blocked, setsigdef=_RESET
        )
    except OSError as error:
        raise InitError(f"cannot start {argv[0]}: {error.strerror}") from error


def _watch(daemon: int, listened: set[signal.Signals]) -> tuple[int, bool]:
    """Pass signals on and reap children until the daemon has died."""
    asked = False
    while True:
        sign = signal.sigwait(listened)
        if sign is not signal.SIGCHLD:
            asked = asked or sign in _ENDING
            os.kill(daemon, sign)
            continue
        status = _reap(daemon)
        if status is not None:
            return os.waitstatus_to_exitcode(status), asked


def _wait(seconds: float, listened: set[signal.Signals]) -> signal.Signals | None:
    """Wait, reaping children; return the signal that asked us to end meanwhile, if any."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        info = signal.sigtimedwait(listened, left)
        if info is None:
            continue
        if info.si_signo in _ENDING:
            return signal.Signals(info.si_signo)
        _reap(0)
    return None


def _reap(daemon: int) -> int | None:
    """Reap all dead children; return the daemon's status if it was among them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == daemon:
                found = status
    return found
