"""Faults of a daemon, its run folder and its journal."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable

from bench.faults.fault import Expected, Fault, Inject
from bench.faults.scene import Scene, Victim

# Starting a Python process can take many seconds on a busy machine.
BACK = Expected(state="a page", reported_seconds=30.0, dies=False)
BACK_ANEW = Expected(state="a page", reported_seconds=30.0, dies=False, resets=("disagg_",))
BACK_UNJOURNALLED = Expected(
    state="a page", reported_seconds=30.0, dies=False, resets=("disagg_worker_restarts_",)
)
BACK_WITH_A_DEATH = Expected(state="a page", reported_seconds=30.0)


def _killed(scene: Scene, _victim: Victim) -> None:
    scene.rest(2.0 * scene.chance.random())
    scene.kill_daemon()
    scene.next_daemon()


def _killed_while_a_worker_dies(scene: Scene, victim: Victim) -> None:
    victim.kill(signal.SIGKILL)
    scene.rest(0.3 * scene.chance.random())
    scene.kill_daemon()
    scene.next_daemon()


def _killed_while_it_starts(scene: Scene, _victim: Victim) -> None:
    scene.kill_daemon()
    scene.next_daemon()
    scene.rest(2.0 * scene.chance.random())
    scene.kill_daemon()
    scene.next_daemon()


def _leaves(scene: Scene, _victim: Victim) -> None:
    scene.leave()
    scene.next_daemon()


def _leaves_while_a_worker_dies(scene: Scene, victim: Victim) -> None:
    scene.leave()
    victim.kill(signal.SIGKILL)
    scene.next_daemon()


def _upgraded(scene: Scene, _victim: Victim) -> None:
    """Another daemon with another node file takes over while the first is asked to leave."""
    workers = [dict(worker) for worker in scene.node_file["workers"]]
    for worker in workers:
        worker["env"] = {**worker["env"], "UPGRADED": str(scene.chance.random())}
    scene.leave()
    scene.next_daemon(workers=workers)


def _away(scene: Scene, _victim: Victim) -> None:
    scene.kill_daemon()
    scene.rest(5.0)
    scene.next_daemon()


DAEMON_FAULTS = (
    Fault("killed", _killed, BACK, weight=6),
    Fault("killed while a worker dies", _killed_while_a_worker_dies, BACK_WITH_A_DEATH, weight=3),
    Fault("killed while it starts", _killed_while_it_starts, BACK, weight=3),
    Fault("leaves", _leaves, BACK, weight=3),
    Fault("leaves, and a worker dies", _leaves_while_a_worker_dies, BACK_WITH_A_DEATH, weight=2),
    Fault("upgraded", _upgraded, BACK, weight=2),
    Fault("away for 5 s", _away, BACK, weight=1),
)


def then_killed(act: Callable[[Scene], None]) -> Inject:
    """Return a fault that changes the run folder, then kills the daemon and starts the next."""

    def inject(scene: Scene, _victim: Victim) -> None:
        act(scene)
        scene.rest(1.5 * scene.chance.random())
        scene.kill_daemon()
        scene.next_daemon()

    return inject


def after_killed(act: Callable[[Scene], None]) -> Inject:
    """Return a fault that kills the daemon, changes the files it left, and starts the next."""

    def inject(scene: Scene, _victim: Victim) -> None:
        scene.kill_daemon()
        act(scene)
        scene.next_daemon()

    return inject


def _delete_folder(scene: Scene) -> None:
    shutil.rmtree(scene.run_dir, ignore_errors=True)


def _replace_folder(scene: Scene) -> None:
    _delete_folder(scene)
    scene.run_dir.mkdir(mode=0o700)


def _delete_sockets(scene: Scene) -> None:
    for path in scene.run_dir.rglob("*.sock"):
        path.unlink(missing_ok=True)


def _delete_logs(scene: Scene) -> None:
    shutil.rmtree(scene.run_dir / "logs", ignore_errors=True)


def _delete_lock(scene: Scene) -> None:
    (scene.run_dir / "lock").unlink(missing_ok=True)


def _open_to_all(scene: Scene, _victim: Victim) -> None:
    scene.run_dir.chmod(0o777)
    scene.rest(2.0)
    scene.run_dir.chmod(0o700)


def _folder_is_a_link(scene: Scene, _victim: Victim) -> None:
    """Starting with a link must be refused or find the workers; then the folder is restored."""
    real = scene.run_dir.with_name("real")
    scene.kill_daemon()
    scene.run_dir.rename(real)
    scene.run_dir.symlink_to(real)
    scene.next_daemon()
    scene.rest(3.0)
    scene.run_dir.unlink()
    real.rename(scene.run_dir)
    scene.kill_daemon()
    scene.next_daemon()


FOLDER_FAULTS = (
    Fault("deleted, then the daemon is killed", then_killed(_delete_folder), BACK_ANEW, weight=3),
    Fault("deleted while no daemon is there", after_killed(_delete_folder), BACK_ANEW, weight=3),
    Fault("replaced by an empty one", then_killed(_replace_folder), BACK_ANEW, weight=2),
    Fault("its sockets deleted", then_killed(_delete_sockets), BACK, weight=2),
    Fault("its logs deleted", after_killed(_delete_logs), BACK, weight=2),
    Fault("its lock deleted", then_killed(_delete_lock), BACK, weight=2),
    Fault("open to all for 2 s", _open_to_all, BACK, weight=1),
    Fault("a link in its place", _folder_is_a_link, BACK, weight=1),
)


def _journal(scene: Scene) -> bytes:
    path = scene.run_dir / "journal.json"
    return path.read_bytes() if path.exists() else b"{}"


def _torn(scene: Scene) -> None:
    text = _journal(scene)
    (scene.run_dir / "journal.json").write_bytes(text[: scene.chance.randrange(len(text))])


def _garbled(scene: Scene) -> None:
    text = bytearray(_journal(scene))
    for _ in range(5):
        text[scene.chance.randrange(len(text))] = scene.chance.randrange(256)
    (scene.run_dir / "journal.json").write_bytes(bytes(text))


def _vanished(scene: Scene) -> None:
    (scene.run_dir / "journal.json").unlink(missing_ok=True)


def _a_folder(scene: Scene) -> None:
    _vanished(scene)
    (scene.run_dir / "journal.json").mkdir()


def _hostile(scene: Scene) -> None:
    """Write values that no daemon ever writes."""
    journal = json.loads(_journal(scene))
    for entry in journal.get("workers", ()):
        key, value = scene.chance.choice(
            (
                ("pid", 0),
                ("pid", -1),
                ("pid", 2**31),
                ("pid", 1),
                ("start_ticks", -1),
                ("log_path", "/tmp/a\0b"),
                ("log_path", "/etc/passwd"),
                ("argv", []),
                ("life", None),
            )
        )
        entry[key] = value
    (scene.run_dir / "journal.json").write_text(json.dumps(journal), encoding="utf-8")


def _restored(scene: Scene, _victim: Victim) -> None:
    path = scene.run_dir / "journal.json"
    if path.is_dir():
        path.rmdir()


JOURNAL_FAULTS = (
    Fault("torn", after_killed(_torn), BACK_UNJOURNALLED, weight=4),
    Fault("garbled", after_killed(_garbled), BACK_UNJOURNALLED, weight=4),
    Fault("hostile", after_killed(_hostile), BACK_UNJOURNALLED, weight=4),
    Fault("vanished", after_killed(_vanished), BACK_UNJOURNALLED, weight=3),
    Fault(
        "a folder in its place",
        after_killed(_a_folder),
        BACK_UNJOURNALLED,
        heal=_restored,
        lasts_seconds=2.0,
    ),
)
