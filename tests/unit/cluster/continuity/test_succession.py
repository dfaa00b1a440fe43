"""The accounting from one daemon to the next, over real files."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from disagg_cluster.continuity import checkpoint_file
from disagg_cluster.continuity.checkpoint_file import CheckpointFile
from disagg_cluster.continuity.succession import ENDED_NS, LINGER_NS, RETURN_NS, Continuity
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.accounting import Ledger
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.model import Device, EngineState, Reason, Use
from disagg_exporter.model.checkpoints import LedgerCheckpoint
from support.accounting import NodeAccounting, StepReporter, ns

HERE = Where(boot_id="boot", pid_namespace="pids")
LOG = logging.getLogger("continuity")
OURS = "4711 99"
STARTED = {1: 100, 2: 200}
GPU = Device("g0", 0, "H100", "nvidia0")


def continuity(folder: Path, ledger: Ledger, started: dict[int, int] = STARTED) -> Continuity:
    paths = folder / "accounting-0.json", folder / "accounting-1.json"
    file = CheckpointFile(paths, HERE, LOG)
    return Continuity(ledger, file, LOG, start_ticks=started.get)


def left_behind(folder: Path) -> NodeAccounting:
    """A busy engine, and a daemon that has died at 20 s."""
    books, teller = NodeAccounting(), StepReporter()
    books.engine(pids=(1,))
    for number in range(200):
        books.step(teller, teller.decode((number + 1) / 10, 0.1, running=1))
    books.advance(20)
    continuity(folder, books.ledger).save(ns(20), 5.0)
    return books


def resumed(folder: Path, started: dict[int, int] = STARTED) -> tuple[NodeAccounting, Continuity]:
    after = NodeAccounting(gpus=0)
    following = continuity(folder, after.ledger, started)
    before = following.resume([GPU], ns(50), "", OURS)
    assert before is not None
    assert before.wall_offset_seconds == 5.0
    return after, following


def test_an_engine_with_a_reused_pid_is_not_waited_for(tmp_path: Path) -> None:
    """Its pid was reused: it began at another tick."""
    left_behind(tmp_path)
    after, _ = resumed(tmp_path, {1: 101})
    after.advance(57)

    assert after.seconds() == {"decode": 20, "unobserved": 31}
    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 30, Reason.NO_READING: 1}


def test_an_engine_that_is_not_found_again_is_given_up_and_forgotten(tmp_path: Path) -> None:
    left_behind(tmp_path)
    after, following = resumed(tmp_path)
    after.advance(57)
    assert after.watermark() == 14

    following.give_up_missing((), ns(50) + RETURN_NS - 1)
    assert after.ledger.has_engines
    following.give_up_missing((), ns(50) + RETURN_NS)
    assert not after.ledger.has_engines
    after.advance(86)
    assert after.unbalanced() == []
    assert after.watermark() == 80
    assert after.seconds()["decode"] == 20
    assert len(after.ledger.engine_accounts(ns(86))) == 1

    following.give_up_missing((), ns(50) + RETURN_NS + LINGER_NS)
    assert after.ledger.engine_accounts(ns(150)) == ()
    assert after.seconds()["decode"] == 20


def test_an_engine_that_comes_back_late_is_not_forgotten(tmp_path: Path) -> None:
    left_behind(tmp_path)
    after, following = resumed(tmp_path)
    following.give_up_missing((), ns(50) + RETURN_NS)
    after.engine(since=85, pids=(1,))
    following.give_up_missing(("e",), ns(50) + RETURN_NS + LINGER_NS)

    assert after.ledger.has_engines


def test_accounting_ends_with_the_last_engine(tmp_path: Path) -> None:
    """A user who has stopped all engines does not want hours without engines on the next page."""
    books = left_behind(tmp_path)
    ending = continuity(tmp_path, books.ledger)
    ending.finish(ns(21), 5.0)
    assert list(tmp_path.iterdir())

    books.engine(state=EngineState.GONE, since=22, pids=(1,))
    ending.finish(ns(22), 5.0)
    assert list(tmp_path.iterdir()) == []
    assert continuity(tmp_path, Ledger()).resume([GPU], ns(50), "", "") is None


def test_a_checkpoint_that_cannot_be_written_is_a_failed_collector(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    books = left_behind(folder)
    keeping = continuity(folder, books.ledger)
    keeping.save(ns(21), 5.0)
    assert keeping.status().success
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

    keeping.save(ns(22), 5.0)
    assert not keeping.status().success
    folder.mkdir()
    keeping.save(ns(23), 5.0)
    assert keeping.status().success


def test_a_node_that_was_out_of_service_begins_at_zero(tmp_path: Path) -> None:
    """Its engines have ended, and nothing was there to be observed."""
    left_behind(tmp_path)
    late_ns = ns(20) + ENDED_NS + 1
    assert continuity(tmp_path, Ledger(), {}).resume([GPU], late_ns, "", "") is None
    assert continuity(tmp_path, Ledger(), {}).resume([GPU], late_ns - 1, "", "") is not None
    assert continuity(tmp_path, Ledger(), STARTED).resume([GPU], late_ns, "", "") is not None


def test_a_checkpoint_outlives_a_daemon_that_dies_before_saving(tmp_path: Path) -> None:
    """The lock names it, and no longer the one that wrote the checkpoint."""
    left_behind(tmp_path)
    resumed(tmp_path)
    after = NodeAccounting(gpus=0)
    third = continuity(tmp_path, after.ledger)

    assert third.resume([GPU], ns(60), OURS, "4712 50") is not None
    assert after.watermark() == 14


def test_an_unusable_checkpoint_ends_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With it in place no daemon could start again, and no engine would be supervised."""
    left_behind(tmp_path)
    monkeypatch.setattr(DeviceLedger, "commit", fail)
    after = Ledger()
    following = continuity(tmp_path, after)

    assert following.resume([GPU], ns(50), "", OURS) is None
    assert "counters begin at zero" in caplog.text
    assert not following.status().success
    assert following.status().unexpected_failures == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".rejected"}
    assert after.checkpoint(ns(50)) == LedgerCheckpoint(ns(50))


def fail(*_: object) -> None:
    raise AssertionError("of a version that is not ours")


def test_accounts_are_shown_only_if_written_or_nothing_older_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor that continued from the older one would show less than before."""
    books = left_behind(tmp_path)
    keeping = continuity(tmp_path, books.ledger)
    assert keeping.save(ns(21), 5.0)

    with monkeypatch.context() as disk:
        disk.setattr(checkpoint_file, "open_private", full)
        assert keeping.save(ns(22), 5.0)
        assert not keeping.status().success
        assert list(tmp_path.iterdir()) == []

    assert keeping.save(ns(23), 5.0)
    with monkeypatch.context() as disk:
        disk.setattr(checkpoint_file, "open_private", full)
        disk.setattr(Path, "unlink", full)
        assert not keeping.save(ns(24), 5.0)
        assert not keeping.status().success
    assert keeping.save(ns(25), 5.0)
    assert keeping.status().success


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
