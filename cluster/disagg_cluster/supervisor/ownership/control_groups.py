"""The control groups of all workers, with the limits of each."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from disagg_cluster.config.worker import WorkerLimits
from disagg_cluster.host.processes import procfs
from disagg_cluster.supervisor.process.child_process import ChildProcess
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus

_DELEGATED = ("trusted.delegate", "user.delegate")
_SYSTEMD = Path("/run/systemd/system")


def group_root(
    proc: Path = Path("/proc/self"), systemd: Path = _SYSTEMD
) -> tuple[Path | None, str]:
    """Return the group below which we may make others; None with the reason if there is none.

    Under systemd it is one that was delegated to us: our own, or its parent where the unit puts us
    into a subgroup (`DelegateSubgroup=`).
    """
    try:
        ours = _place(proc)
    except OSError as error:
        return None, f"control groups cannot be read: {error.strerror}"
    if ours is None:
        return None, "no control groups of version 2 are mounted"
    for path in (ours.parent, ours):
        if _is_delegated(path) and _is_writable(path):
            return path, ""
    if systemd.is_dir():
        return None, f"{ours} is not delegated to us (`Delegate=yes` in the unit)"
    return (ours, "") if _is_writable(ours) else (None, f"{ours} is not ours to write")


def group_of(pid: int) -> Path | None:
    """Return the group of a process; None if that cannot be seen."""
    try:
        return _place(Path("/proc/self"), Path(f"/proc/{pid}/cgroup"))
    except OSError:
        return None


class ControlGroup:
    """The group of one worker.

    Args:
        root: Where it is made.
        log_path: The worker's log, which identifies it beyond doubt.
        worker: The worker's name.
    """

    def __init__(self, root: Path, log_path: Path, worker: str) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:8]
        self.path = root / f"disagg-{digest}-{worker}"
        self._root = root
        self._oom_kills = 0

    def make(self, limits: WorkerLimits) -> tuple[str, ...]:
        """Make it and set its limits; return what could not be set."""
        wanted = (
            ("memory", "memory.max", limits.memory),
            ("pids", "pids.max", limits.tasks),
        )
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            return (f"no control group can be made in {self._root}: {error.strerror}",)
        problems = []
        for controller, name, value in wanted:
            problem = "" if value is None else self._enable(controller)
            problem = problem or self._set(name, "max" if value is None else str(value), value)
            if problem:
                problems.append(problem)
        with suppress(OSError):
            # A worker that lost one of its processes is useless: it ends as a whole, and restarts.
            (self.path / "memory.oom.group").write_text("1")
        self._oom_kills = self._count_oom_kills()
        return tuple(problems)

    def add(self, pid: int) -> str:
        """Put a process into it, with all that it has started meanwhile; return why not."""
        waiting, seen = [pid], set[int]()
        while waiting:
            each = waiting.pop()
            seen.add(each)
            try:
                (self.path / "cgroup.procs").write_text(str(each))
            except ProcessLookupError:
                continue
            except OSError as error:
                return f"cannot put it into {self.path}: {error.strerror}"
            waiting += [child for child in procfs.children_of(each) if child not in seen]
        return ""

    def pids(self) -> frozenset[int]:
        """All processes in it; none if it is not there."""
        try:
            return frozenset(map(int, (self.path / "cgroup.procs").read_text().split()))
        except (OSError, ValueError):
            return frozenset()

    def kill(self) -> None:
        """Kill all of them at once; does nothing if we ourselves are among them."""
        if os.getpid() not in self.pids():
            with suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")

    def was_out_of_memory(self) -> bool:
        """Whether the kernel has killed one of them for its memory since it was made."""
        return self._count_oom_kills() > self._oom_kills

    def remove(self) -> None:
        """Remove it, if it is empty."""
        with suppress(OSError):
            self.path.rmdir()

    def _enable(self, controller: str) -> str:
        """Enable a controller for the root's groups; return why not."""
        try:
            if controller not in (self._root / "cgroup.controllers").read_text().split():
                return f"the system gives us no control of {controller} in {self._root}"
            if controller not in (self._root / "cgroup.subtree_control").read_text().split():
                (self._root / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            hint = "processes are in it, `DelegateSubgroup=` in the unit puts them elsewhere"
            why = hint if error.errno == errno.EBUSY else error.strerror
            return f"no control of {controller} in {self._root}: {why}"
        return ""

    def _set(self, name: str, text: str, value: int | None) -> str:
        try:
            if (self.path / name).exists() or value is not None:
                (self.path / name).write_text(text)
        except OSError as error:
            return f"cannot set {name} of {self.path}: {error.strerror}"
        return ""

    def _count_oom_kills(self) -> int:
        try:
            lines = (self.path / "memory.events").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _place(proc: Path, groups: Path | None = None) -> Path | None:
    """Return where the group of a process can be found; None without such a hierarchy."""
    mounts = (proc / "mountinfo").read_text().splitlines()
    lines = (groups or proc / "cgroup").read_text().splitlines()
    mount = next((line.split() for line in mounts if " - cgroup2 " in line), None)
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mount is None or own is None:
        return None
    return Path(os.path.normpath(Path(mount[4]) / os.path.relpath(own, mount[3])))


def _is_delegated(path: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            return os.getxattr(path, name) == b"1"
    return False


def _is_writable(path: Path) -> bool:
    return all(os.access(each, os.W_OK) for each in (path, path / "cgroup.procs"))


class ControlGroups:
    """Gives each worker's process its group and limits; a worker also runs without them.

    Args:
        root: Where groups are made; None if they are unavailable.
        why: Why they are.
        log: Logs each unavailable limit once.
    """

    def __init__(self, root: Path | None, why: str, log: logging.Logger) -> None:
        self._root = root
        self._why = why
        self._log = log
        self._groups: dict[str, ControlGroup] = {}
        self._health: dict[str, CollectorHealth] = {}

    def prepare(self, worker: str, log_path: Path, limits: WorkerLimits) -> None:
        """Make the group of a worker that is about to be started, with its limits."""
        problems: tuple[str, ...] = ()
        if self._root is None:
            problems = (self._why,) if (limits.memory or limits.tasks) else ()
        else:
            group = self._groups[worker] = ControlGroup(self._root, log_path, worker)
            # What was left there has been ended before; otherwise the group is reused.
            group.remove()
            problems = group.make(limits)
        self._tell(worker, limits, problems)

    def enter(self, worker: str, child: ChildProcess, limits: WorkerLimits) -> None:
        """Put a newly started process into the group of its worker."""
        problems = []
        group = self._groups.get(worker)
        if group is not None and (problem := group.add(child.pid)):
            problems.append(problem)
        if limits.oom_score_adjust is not None:
            try:
                score = Path(f"/proc/{child.pid}/oom_score_adj")
                score.write_text(str(limits.oom_score_adjust))
            except OSError as error:
                problems.append(f"cannot set oom_score_adjust: {error.strerror}")
        if problems:
            self._tell(worker, limits, tuple(problems))

    def attach(self, worker: str, log_path: Path, child: ChildProcess) -> None:
        """Connect a process, perhaps adopted, to the group of its worker.

        An adopted one may be in a group that a daemon made elsewhere.
        """
        group = self._groups.get(worker) or self._group_of(worker, log_path, child)
        if group is not None:
            self._groups[worker] = group
            child.family.in_group = group.pids
            child.family.kill_group = group.kill

    def leave(self, worker: str) -> None:
        """Remove the group of a worker of which nothing is left."""
        if worker in self._groups:
            self._groups[worker].remove()

    def verdict(self, worker: str, limits: WorkerLimits) -> str:
        """Return why a worker may have died, if its limit was the reason; empty otherwise."""
        group = self._groups.get(worker)
        if group is None or limits.memory is None or not group.was_out_of_memory():
            return ""
        return f"it took more memory than its limit of {limits.memory} bytes (limits.memory)"

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return `limits:<worker>` of workers with limits: failed while one is not enforced."""
        return tuple(health.status() for health in self._health.values())

    def _group_of(self, worker: str, log_path: Path, child: ChildProcess) -> ControlGroup | None:
        within = group_of(child.pid)
        if within is not None:
            group = ControlGroup(within.parent, log_path, worker)
            if group.path == within:
                return group
        return None if self._root is None else ControlGroup(self._root, log_path, worker)

    def _tell(self, worker: str, limits: WorkerLimits, problems: tuple[str, ...]) -> None:
        if not (limits.model_fields_set or problems):
            return
        health = self._health.setdefault(
            worker,
            CollectorHealth(f"limits:{worker}", self._log, failing="runs without all its limits: "),
        )
        with health.round() as problem_by_place:
            problem_by_place.update({str(place): problem for place, problem in enumerate(problems)})
