from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.prometheus.http_config_file import load


def written(folder: Path, text: str) -> Path:
    (folder / "word").write_text("s3cret\n", encoding="utf-8")
    (folder / "latin").write_bytes(b"\xe4")
    (folder / "client.yml").write_text(text, encoding="utf-8")
    return folder / "client.yml"


def problems(folder: Path, text: str) -> list[str]:
    """Return its problems: line, path and message of each."""
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    assert caught.value.exit_code == 2
    return [f"{p.line} {p.path}: {p.message}" for p in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("basic_auth: {username: me, password: s3cret}", "Basic bWU6czNjcmV0"),
        ("basic_auth: {username: me, password_file: word}", "Basic bWU6czNjcmV0"),
        ("authorization: {credentials_file: word}", "Bearer s3cret"),
        ("authorization: {type: Token, credentials: abc}", "Token abc"),
    ],
)
def test_credentials_are_in_the_file_or_beside_it(text: str, shown: str, tmp_path: Path) -> None:
    assert load(written(tmp_path, text)).authorization == shown


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    opened = load(written(tmp_path, "authorization: {credentials_file: word}"))

    assert "s3cret" not in repr(opened)


def test_all_problems_are_reported_at_once_without_secrets(tmp_path: Path) -> None:
    text = """\
basic_auth:
  username: a:b
  password_file: gone
authorization:
  credentials: "1\\n2"
tls_config:
  cafile: ca.pem
  insecure_skip_verify: "yes"
"""

    assert problems(tmp_path, text) == [
        "7 tls_config.cafile: unknown key",
        "8 tls_config.insecure_skip_verify: expected true or false, not 'yes'",
    ]
    assert problems(tmp_path, text.partition("tls_config")[0]) == [
        "2 basic_auth.username: a name cannot hold a colon",
        "3 basic_auth.password_file: cannot be read: No such file or directory",
        "4 authorization: expected printable ASCII on one line",
        "4 authorization: given twice, here and in basic_auth",
    ]
    assert problems(tmp_path, "basic_auth: {username: me, password: 4711}") == [
        "1 basic_auth.password: expected a password, text, not a number"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("basic_auth: {username: me}", "1 basic_auth.password: missing: it or password_file"),
        (
            "basic_auth: {username: me, password: a, password_file: word}",
            "1 basic_auth.password: given twice, here and in password_file",
        ),
        (
            "authorization: {credentials_file: latin}",
            "1 authorization.credentials_file: cannot be read: not text in UTF-8",
        ),
        (
            "tls_config: {server_name: .example}",
            "1 tls_config.server_name: no certificate has such a name",
        ),
        (
            "- 1",
            "1 : expected a mapping with basic_auth, authorization, tls_config, not [1]",
        ),
    ],
)
def test_conflicting_settings_are_reported(text: str, told: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text) == [told]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yml: cannot be read: No such file"):
        load(tmp_path / "gone.yml")


@pytest.mark.parametrize("key", ["authorization", "basic_auth"])
def test_a_misplaced_secret_is_not_repeated(key: str, tmp_path: Path) -> None:
    told = problems(tmp_path, f"{key}: Bearer s3cret\n")

    assert told[0].startswith(f"1 {key}: expected a mapping")
    assert "s3cret" not in "".join(told)
