from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from disagg_cluster.config import Listen
from disagg_cluster.daemon.endpoint_file import (
    DaemonEndpoint,
    EndpointFile,
    near_url,
    of_file,
    read_endpoint,
)
from disagg_exporter.http.listen import ListenAddress

ADDRESS = ListenAddress("::1", 9847)


def test_who_serves_leaves_word_and_takes_it_away(tmp_path: Path) -> None:
    place = tmp_path / "whereabouts.json"
    listen = Listen(web_config="/etc/disagg-node/web.yml")

    with EndpointFile(place, ADDRESS, listen):
        assert read_endpoint(place) == DaemonEndpoint(ADDRESS, Path("/etc/disagg-node/web.yml"))
    assert not place.exists()


def test_word_of_who_lives_no_more_counts_for_nothing(tmp_path: Path) -> None:
    """A pid is used again; together with its start it is not."""
    place = tmp_path / "whereabouts.json"
    with EndpointFile(place, ADDRESS, Listen()):
        told = json.loads(place.read_text())
        for change in ({"pid": 1 << 30}, {"start_ticks": 1}, {"start_ticks": None}):
            place.write_text(json.dumps(told | change))

            assert read_endpoint(place) is None


def test_word_that_somebody_else_has_left_since_is_not_taken_away(tmp_path: Path) -> None:
    """The end of a first daemon must not hide a second."""
    place = tmp_path / "whereabouts.json"
    second = ListenAddress("::1", 9848)
    with ExitStack() as first:
        word = first.enter_context(EndpointFile(place, ADDRESS, Listen()))
        assert word.is_in_place
        with EndpointFile(place, second, Listen()):
            assert not word.is_in_place
            first.close()
            assert read_endpoint(place) == DaemonEndpoint(second)


def test_word_that_somebody_removed_is_left_again_and_is_private(tmp_path: Path) -> None:
    place = tmp_path / "whereabouts.json"
    with EndpointFile(place, ADDRESS, Listen()) as word:
        place.unlink()
        assert not word.is_in_place
        word.write()
        assert word.is_in_place
        assert read_endpoint(place) == DaemonEndpoint(ADDRESS)
        assert place.stat().st_mode & 0o777 == 0o600
    assert not place.exists()


@pytest.mark.parametrize("text", ["", "[]", "[" * 9000, '{"pid": "x"}', "{}", "\N{SNOWMAN}"])
def test_what_is_no_such_word_counts_for_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd").write_text(text, encoding="utf-8")

    assert read_endpoint(tmp_path / "odd") is None


def test_an_address_that_is_none_counts_for_nothing(tmp_path: Path) -> None:
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        told = json.loads((tmp_path / "word").read_text()) | {"address": "nowhere"}
        (tmp_path / "word").write_text(json.dumps(told))

        assert read_endpoint(tmp_path / "word") is None


def test_what_another_user_wrote_counts_for_nothing(tmp_path: Path) -> None:
    """Passwords go where it says."""
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        try:
            os.chown(tmp_path / "word", 12345, 12345)
        except PermissionError:
            pytest.skip("only root can give a file away")

        assert read_endpoint(tmp_path / "word") is None


def test_a_folder_that_takes_no_file_stops_no_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        EndpointFile(tmp_path / "no" / "word", ADDRESS, Listen()),
    ):
        assert "cannot write" in caplog.text


@pytest.mark.parametrize(
    ("host", "root"),
    [
        ("", "https://127.0.0.1:9847"),
        ("0.0.0.0", "https://127.0.0.1:9847"),
        ("::", "https://[::1]:9847"),
        ("fe80::1", "https://[fe80::1]:9847"),
        ("gpu-7", "https://gpu-7:9847"),
    ],
)
def test_a_server_is_reached_where_it_listens(host: str, root: str) -> None:
    assert near_url(ListenAddress(host, 9847), "https") == root


def test_a_node_file_says_where_its_daemon_will_answer() -> None:
    assert of_file(Listen(metrics="10.0.0.7:1")) == DaemonEndpoint(ListenAddress("10.0.0.7", 1))


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """Where nobody said where folders are, another user may have laid it there."""
    os.mkfifo(tmp_path / "word")

    assert read_endpoint(tmp_path / "word") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Who laid it is not who wrote what it leads to."""
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        (tmp_path / "link").symlink_to("word")

        assert read_endpoint(tmp_path / "link") is None
