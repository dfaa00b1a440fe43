"""Workers that not even SIGKILL ends: what is said of them, and how a command ends then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_cluster.host.processes import procfs
from disagg_exporter.errors import DisaggError

EXIT_STUCK = 6

_STATES = {
    "D": "it waits in the kernel and cannot be interrupted",
    "T": "it is stopped",
    "t": "it is held by a debugger",
    "Z": "its process is over, but a thread or a child of it is not",
}


class StuckWorkersError(DisaggError):
    """Workers are still there after SIGKILL; the text names each and says what to do."""

    exit_code = EXIT_STUCK

    def __init__(self, stuck: Sequence[tuple[str, int | None, str]]) -> None:
        """`stuck`: name, pid and the kernel's letter for its state, empty if not known."""
        lines = [_line(*worker) for worker in stuck]
        super().__init__("\n".join(["still there after SIGKILL:", *lines, _ADVICE]))


def stuck(pids: Mapping[str, int | None]) -> StuckWorkersError:
    """What to raise of workers that are still there, by their pids: with what the kernel says."""
    return StuckWorkersError(
        [(worker, pid, procfs.state(pid) if pid else "") for worker, pid in pids.items()]
    )


_ADVICE = (
    "  They end once the kernel lets them; until then their ports and GPUs stay taken.\n"
    "  A frozen control group has to be thawed, a hung driver or file server to be mended.\n"
    "  `disagg-node stop --workers` tries again; the next `disagg-node start` waits for them."
)


def _line(worker: str, pid: int | None, state: str) -> str:
    process = "" if pid is None else f" (pid {pid})"
    why = _STATES.get(state, "the kernel does not let it end: its control group may be frozen")
    look = "" if pid is None else f"; see /proc/{pid}/stack and /proc/{pid}/cgroup"
    return f"  {worker}{process}: {why}{look}"
