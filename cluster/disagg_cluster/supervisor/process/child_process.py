"""One child process in a separate session: start it, detect its death, signal all of it.

The leader is not reaped before the last of its session has died: as long as it is a zombie, its
pid, which is also the number of its group and session, cannot be reused. One that an earlier daemon
started may be reaped by another process; its number stays taken as long as any process of its
session lives.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.host.worker_logs import LogError, open_log
from disagg_cluster.supervisor.process.family import ProcessFamily
from disagg_exporter.errors import DisaggError

# Errors of the command itself: it would fail even with every resource free.
_WRONG_COMMAND = frozenset(
    {
        errno.E2BIG,
        errno.EACCES,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.EPERM,
    }
)


class StartError(DisaggError):
    """A child could not be started; the text names the file and what to look at.

    Attributes:
        refused: The system lacked the resources for it, or for its log: the command may be right.
        errno: The system's error number, if there is one.
    """

    def __init__(self, text: str, *, refused: bool = False, errno: int | None = None) -> None:
        super().__init__(text)
        self.refused = refused
        self.errno = errno


@dataclass(eq=False)
class ChildProcess:
    """A process started by us or the previous daemon, leader of its session.

    Attributes:
        pid: Of the leader; also the number of its group and session.
        start_ticks: Its start in clock ticks since boot, which makes the pid unique.
        pidfd: Becomes readable when the leader dies; ours to close.
        log_start_bytes: The length of the log before it started.
        log_lost: Why nothing is written to its log; empty if something is.
        mark: What its processes have inherited (`process_traits`).
        family: The processes that belong to it besides its session.
    """

    pid: int
    start_ticks: int
    pidfd: int
    log_start_bytes: int
    log_lost: str = ""
    mark: InitVar[str] = ""
    family: ProcessFamily = field(init=False)

    def __post_init__(self, mark: str) -> None:
        self.family = ProcessFamily(self.pid, self.start_ticks, mark)

    def exit_code(self) -> int | None:
        """Return the dead leader's exit code, or minus the signal that ended it; does not reap.

        None if it cannot be known: it still runs, or it is no child of ours.
        """
        try:
            seen = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return None
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def survivors(self) -> tuple[int, ...]:
        """Return the living of session and family besides the leader; reap its session's dead.

        Orphans are reparented to us and would stay zombies.
        """
        if not self._is_ours():
            return ()
        members = [pid for pid in procfs.session_pids(self.pid) if pid != self.pid]
        living = tuple(pid for pid in members if procfs.is_alive(pid))
        for pid in set(members).difference(living):
            _reap(pid)
        return living + self.family.escaped()

    def watch(self, pid: int) -> int | None:
        """Return a member's pidfd, which the caller closes; None if the process has gone."""
        pidfd = _member_pidfd(pid, self.family)
        # Checked once more: if the leader's pid has been reused, the member may not be ours.
        if pidfd is not None and not self._is_ours():
            os.close(pidfd)
            return None
        return pidfd

    def signal_group(self, sign: signal.Signals) -> bool:
        """Signal session and family; False if the pid is no longer ours, or may not be signalled.

        The number of the group is only used while a child of our own holds it, if only as a zombie.
        Any other child may be reaped, and its number reused, between two of our checks.
        """
        if not self._is_ours():
            return False
        held = self._is_our_child()
        try:
            if held:
                os.killpg(self.pid, sign)
            else:
                signal.pidfd_send_signal(self.pidfd, sign)
        except PermissionError:
            return False
        except ProcessLookupError:
            # Only the leader is gone; others may live on in its group.
            if held:
                return False
        for pid in self.survivors():
            # Some may have left the group; none is signalled twice.
            outside = not held or _group_of(pid) != self.pid
            pidfd = self.watch(pid) if outside else None
            if pidfd is not None:
                _signal(pidfd, sign)
        if sign is signal.SIGKILL:
            self.family.kill_group()
        return True

    def is_over(self) -> bool:
        """Whether the leader has died; opens no descriptor."""
        return self.pidfd >= 0 and _is_readable(self.pidfd)

    def reap(self) -> None:
        """Reap the dead leader and close its pidfd.

        Does nothing while the leader runs.
        """
        if not self.is_over():
            return
        _reap(self.pid)
        self.let_go()

    def let_go(self) -> None:
        """Stop watching it; it goes on alone."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _is_our_child(self) -> bool:
        """Whether it is ours to reap, and has not been reaped."""
        try:
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return False
        return True

    def _is_ours(self) -> bool:
        return self.pidfd >= 0 and procfs.start_ticks(self.pid) in (self.start_ticks, None)


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    log_path: Path,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    output: int | None = None,
) -> ChildProcess:
    """Start a child in its own session, both outputs appended to its log.

    Args:
        argv: Program and arguments; the program is searched on the PATH of `env`.
        env: The whole environment.
        log_path: Appended to; O_APPEND lets a copy-truncate rotation work under a running engine.
        cwd: Where it starts; ours if None.
        stdin: A descriptor for its standard input, which is empty otherwise.
        output: A descriptor for both its outputs; its log if None.

    Raises:
        StartError: The log cannot be opened, or the program cannot be run. A full disk is no
            reason: the child then runs without a log.
    """
    try:
        log, log_lost = open_log(log_path)
    except LogError as error:
        raise StartError(str(error), refused=True, errno=error.errno) from error
    with log:
        log_start_bytes = log.seek(0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=log if output is None else output,
                stderr=log if output is None else output,
                close_fds=True,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            wrong = number in _WRONG_COMMAND
            text = _start_text(argv, cwd, error)
            raise StartError(text, refused=not wrong, errno=number) from error
    # From here on we wait for it ourselves, by its pidfd.
    process.returncode = 0
    try:
        # Zero only if something else reaps our children: it then never matches again.
        ticks = procfs.start_ticks(process.pid) or 0
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        # Without a descriptor nothing would watch it: better no child than that.
        os.killpg(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        text = f"cannot watch {argv[0]}: {error.strerror}"
        raise StartError(text, refused=True, errno=error.errno) from error
    mark = env.get(WORKER_MARK, "")
    return ChildProcess(process.pid, ticks, pidfd, log_start_bytes, log_lost, mark=mark)


def _start_text(argv: Sequence[str], cwd: Path | None, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError) and cwd is not None and not cwd.is_dir():
        return f"cannot start {argv[0]}: its working directory {cwd} does not exist"
    if isinstance(error, FileNotFoundError):
        return f"cannot start {argv[0]}: no such program, or none to interpret it"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot start {argv[0]}: {reason}"


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _member_pidfd(pid: int, family: ProcessFamily) -> int | None:
    pidfd = procfs.open_pidfd(pid)
    # Checked after the pidfd was opened, so that the answer is about its very process.
    if pidfd is None or family.includes(pid):
        return pidfd
    os.close(pidfd)
    return None


def _signal(pidfd: int, sign: signal.Signals) -> None:
    """Signal one process, if it is there and may be signalled, and close its pidfd."""
    try:
        signal.pidfd_send_signal(pidfd, sign)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(pidfd)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # somebody else's child
        os.waitpid(pid, os.WNOHANG)
