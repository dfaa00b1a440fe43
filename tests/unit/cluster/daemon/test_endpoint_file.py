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


def test_an_endpoint_file_is_written_and_removed_at_the_end(tmp_path: Path) -> None:
    place = tmp_path / "whereabouts.json"
    listen = Listen(web_config="/etc/disagg-node/web.yml")

    with EndpointFile(place, ADDRESS, listen):
        assert read_endpoint(place) == DaemonEndpoint(ADDRESS, Path("/etc/disagg-node/web.yml"))
    assert not place.exists()


def test_an_endpoint_file_of_a_dead_process_is_ignored(tmp_path: Path) -> None:
    """A pid may be reused, so the start time must match too."""
    place = tmp_path / "whereabouts.json"
    with EndpointFile(place, ADDRESS, Listen()):
        told = json.loads(place.read_text())
        for change in ({"pid": 1 << 30}, {"start_ticks": 1}, {"start_ticks": None}):
            place.write_text(json.dumps(told | change))

            assert read_endpoint(place) is None


def test_an_endpoint_file_of_a_second_daemon_is_not_removed(tmp_path: Path) -> None:
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


def test_a_removed_endpoint_file_is_noticed_and_rewritten_as_private(tmp_path: Path) -> None:
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
def test_a_malformed_endpoint_file_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd").write_text(text, encoding="utf-8")

    assert read_endpoint(tmp_path / "odd") is None


def test_an_endpoint_file_with_an_invalid_address_is_ignored(tmp_path: Path) -> None:
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        told = json.loads((tmp_path / "word").read_text()) | {"address": "nowhere"}
        (tmp_path / "word").write_text(json.dumps(told))

        assert read_endpoint(tmp_path / "word") is None


def test_an_endpoint_file_of_another_user_is_ignored(tmp_path: Path) -> None:
    """A client sends its password to that address."""
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        try:
            os.chown(tmp_path / "word", 12345, 12345)
        except PermissionError:
            pytest.skip("only root can give a file away")

        assert read_endpoint(tmp_path / "word") is None


def test_an_unwritable_folder_is_logged_and_stops_no_daemon(
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
def test_a_listen_address_gives_a_url_reachable_on_this_node(host: str, root: str) -> None:
    assert near_url(ListenAddress(host, 9847), "https") == root


def test_the_listen_section_of_a_node_file_gives_the_endpoint() -> None:
    assert of_file(Listen(metrics="10.0.0.7:1")) == DaemonEndpoint(ListenAddress("10.0.0.7", 1))


def test_a_fifo_in_place_of_the_endpoint_file_does_not_block(tmp_path: Path) -> None:
    """In the default folder, another user may have created it."""
    os.mkfifo(tmp_path / "word")

    assert read_endpoint(tmp_path / "word") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """The owner of a link need not be the owner of its target."""
    with EndpointFile(tmp_path / "word", ADDRESS, Listen()):
        (tmp_path / "link").symlink_to("word")

        assert read_endpoint(tmp_path / "link") is None
