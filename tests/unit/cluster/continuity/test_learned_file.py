"""The file of what was learned: complete, ours, and harmless if it is neither."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from disagg_cluster.continuity.learned_file import LearnedFile
from disagg_cluster.continuity.learned_text import decode, encode
from support.learned import NOW, STATUS, LearningNode, left_by

LOG = logging.getLogger("test-learned")


def file_of(path: Path, node: LearningNode) -> LearnedFile:
    return LearnedFile(path / "learned.json", node.models, LOG, round_seconds=0.0, wall=lambda: NOW)


def test_the_next_daemon_continues_with_the_file(tmp_path: Path) -> None:
    before = LearningNode(left_by()).see(STATUS)
    first = file_of(tmp_path, before)
    first.end()
    after = LearningNode()

    file_of(tmp_path, after).read()

    assert after.see(STATUS).learned() == before.learned()
    assert first.status().success
    assert first.status().last_success_timestamp_seconds == NOW
    assert (tmp_path / "learned.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"{", b'{"version":1,"engines":[]}', b"\xff" * 100])
def test_an_untrusted_file_is_put_aside_and_logged(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "learned.json").write_bytes(text)

    file_of(tmp_path, LearningNode()).read()

    assert "is not trusted" in caplog.text
    assert (tmp_path / "learned.json.rejected").read_bytes() == text
    assert not (tmp_path / "learned.json").exists()


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(encode(left_by().values()))
    (tmp_path / "learned.json").symlink_to(other)
    node = LearningNode()

    file_of(tmp_path, node).read()

    assert "symbolic link" in caplog.text
    assert list(node.models.stored(NOW)) == []


def test_a_first_daemon_finds_nothing_and_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_of(tmp_path, LearningNode()).read()

    assert caplog.text == ""


def test_a_file_that_cannot_be_written_is_a_failed_collector_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = file_of(tmp_path / "gone", LearningNode(left_by()).see(STATUS))
    file.end()
    failed = file.status()
    file.end()
    (tmp_path / "gone").mkdir()
    file.end()

    assert (failed.success, failed.last_success_timestamp_seconds) == (False, None)
    assert caplog.text.count("No such file") == 1
    assert file.status().success
    assert "is written again" in caplog.text


def test_a_failed_save_fails_the_collector_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LearningNode(left_by()).see(STATUS)
    file = file_of(tmp_path, node)

    def fail(*_: object) -> str:
        raise RuntimeError

    monkeypatch.setattr(node.models, "keep_all", fail)
    monkeypatch.setattr(node.models, "due", fail)

    async def run() -> None:
        running = asyncio.create_task(file.run())
        while file.status().success:
            await asyncio.sleep(0)
        assert not running.done()
        running.cancel()

    file.end()
    assert not file.status().success
    asyncio.run(run())


def test_a_running_daemon_writes_what_is_new(tmp_path: Path) -> None:
    file = file_of(tmp_path, LearningNode(left_by()).see(STATUS))

    async def run() -> None:
        running = asyncio.create_task(file.run())
        while not (tmp_path / "learned.json").exists():
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())

    assert len(decode((tmp_path / "learned.json").read_bytes(), NOW)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]
