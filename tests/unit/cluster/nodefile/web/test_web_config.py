from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile.web.access import WebConfigWatch, load
from disagg_cluster.nodefile.web.reading import WebFiles, read
from disagg_cluster.nodefile.web.shape import seconds_of
from support.certificates import write_files

HASH = "$2y$10$" + "a" * 53
TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


def written(folder: Path, text: str) -> Path:
    """A web-config file beside certificates."""
    write_files(folder, {"web.yml": text})
    return folder / "web.yml"


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong with it: path and message of each problem."""
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    assert caught.value.exit_code == 2
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_an_empty_file_requires_nothing(tmp_path: Path) -> None:
    access = load(written(tmp_path, ""))

    assert (access.tls, access.passwords, access.headers, access.rate_limiter) == (
        None,
        None,
        (),
        None,
    )


def test_certificate_and_key_are_found_beside_the_file(tmp_path: Path) -> None:
    access = load(written(tmp_path, TLS))

    assert access.tls is not None
    assert access.tls.minimum_version is ssl.TLSVersion.TLSv1_2
    assert access.tls.verify_mode is ssl.CERT_NONE


def test_certificate_and_key_may_stand_in_the_file(tmp_path: Path) -> None:
    write_files(tmp_path)
    texts = {
        key: (tmp_path / f"{key}.pem").read_text(encoding="ascii").replace("\n", "\n    ")
        for key in ("cert", "key", "ca")
    }
    text = (
        f"tls_server_config:\n  cert: |\n    {texts['cert']}\n  key: |\n    {texts['key']}\n"
        f"  client_ca: |\n    {texts['ca']}\n  client_auth_type: VerifyClientCertIfGiven\n"
    )

    access = load(written(tmp_path, text))

    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_OPTIONAL


def test_all_supported_settings_take_effect(tmp_path: Path) -> None:
    text = f"""\
tls_server_config:
  cert_file: cert.pem
  key_file: {tmp_path}/key.pem
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [scraper.example, "0:0:0:0:0:0:0:1"]
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: true
  headers:
    Content-Security-Policy: "default-src 'self'"
    X-Frame-Options: deny
    X-Content-Type-Options: nosniff
    X-XSS-Protection: "1"
    Strict-Transport-Security: ""
basic_auth_users:
  prom: {HASH}
rate_limit: {{interval: 100ms, burst: 5}}
"""
    access = load(written(tmp_path, text))

    assert access.tls is not None
    assert access.tls.maximum_version is ssl.TLSVersion.TLSv1_2
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert "ECDHE-RSA-AES128-GCM-SHA256" in {c["name"] for c in access.tls.get_ciphers()}
    assert "ECDHE-RSA-AES256-GCM-SHA384" not in {c["name"] for c in access.tls.get_ciphers()}
    assert not access.tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert access.client_names == {"scraper.example", "::1"}
    assert dict(access.headers) == {
        "Content-Security-Policy": "default-src 'self'",
        "X-Frame-Options": "deny",
        "X-Content-Type-Options": "nosniff",
        "X-XSS-Protection": "1",
    }
    assert access.passwords is not None
    assert access.rate_limiter is not None
    assert [access.rate_limiter.take() for _ in range(6)] == [True] * 5 + [False]


def test_cipher_suites_of_tls_13_alone_require_tls_13(tmp_path: Path) -> None:
    access = load(written(tmp_path, TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n"))

    assert access.tls is not None
    assert access.tls.minimum_version is ssl.TLSVersion.TLSv1_3


def test_all_problems_are_reported_at_once_with_lines_and_without_secrets(tmp_path: Path) -> None:
    text = """\
tls_server_config:
  cert_file: gone.pem
  cert_fil: x
  client_auth_type: RequireAnyClientCert
  cipher_suites: [TLS_RSA]
http_server_config:
  headers: {X-Frame-Options: never, Server: apache}
basic_auth_users:
  ann: hunter2
  "a:b": 1717171717
rate_limit: {interval: soon, burst: 1}
tracing: {}
"""
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    told = str(caught.value)

    assert [problem.path for problem in caught.value.problems] == [
        "tls_server_config.key_file",
        "tls_server_config.cert_file",
        "tls_server_config.cert_fil",
        "tls_server_config.client_auth_type",
        "tls_server_config.cipher_suites[0]",
        "http_server_config.headers.Server",
        "http_server_config.headers.X-Frame-Options",
        "basic_auth_users.ann",
        'basic_auth_users["a:b"]',
        "rate_limit.interval",
        "tracing",
    ]
    assert f"{tmp_path}/web.yml:3: tls_server_config.cert_fil: unknown key" in told
    assert "hunter2" not in told
    assert "1717171717" not in told


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "tls_server_config"),
        ("a: b: c", "not valid YAML"),
        ("tls_server_config: {min_version: TLS13}", "cert_file: missing"),
        (TLS + "  key: x", "key: given twice"),
        (TLS.replace("key.pem", "other-key.pem"), "belongs to another certificate"),
        (TLS.replace("key.pem", "web.yml"), "in PEM"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12", "above max_version"),
        (TLS + "  client_ca_file: ca.pem", "asked for nowhere"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert", "needs to know whom to believe"),
        (
            TLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: web.yml",
            "no certificates in PEM",
        ),
        (TLS + "  client_allowed_sans: [a]", "without a verified certificate"),
        (TLS + "  curve_preferences: [X25519, CurveP256]", "Python's TLS takes one"),
        (TLS + "  curve_preferences: [P256]", "no curve known here"),
        (
            TLS + "  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]",
            "all of them are of TLS 1.3",
        ),
        ("basic_auth_users: {a: $2y$31$" + "a" * 53 + "}", "its cost is 31"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\nb"}}', "on one line"),
        ("rate_limit: {interval: 1s}", "no request is ever answered"),
        ("basic_auth_users: {1: x}", "expected text as a key"),
        ("basic_auth_users: {a: x}\nbasic_auth_users: {a: x}", "written twice"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert any(problem in told for told in problems(tmp_path, text)), problems(tmp_path, text)


def test_an_encrypted_key_is_refused_without_a_password_prompt(tmp_path: Path) -> None:
    write_files(tmp_path)
    key = (tmp_path / "key.pem").read_text(encoding="ascii")
    lines = key.splitlines()
    encrypted = "\n".join(
        [lines[0], "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC," + "0" * 32, "", *lines[1:]]
    )
    (tmp_path / "key.pem").write_text(encrypted, encoding="ascii")
    (tmp_path / "web.yml").write_text(TLS, encoding="utf-8")

    with pytest.raises(ConfigError, match="may not be encrypted"):
        load(tmp_path / "web.yml")


def test_a_missing_file_is_reported_as_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "web.yml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("", 0.0), ("1s", 1.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25)],
)
def test_durations_are_parsed_in_the_format_of_go(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1", "s", "-1s", "1 s", "1d"])
def test_other_durations_are_invalid(text: str) -> None:
    assert seconds_of(text) is None


def until(true: Callable[[], bool]) -> None:
    deadline, tick = time.monotonic() + 20, threading.Event()
    while not true():
        assert time.monotonic() < deadline
        tick.wait(0.01)


def test_an_invalid_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        WebConfigWatch(written(tmp_path, "tracing: {}"), logging.getLogger("test"))


def test_a_change_takes_effect_without_a_reload(tmp_path: Path) -> None:
    path = written(tmp_path, TLS)
    with WebConfigWatch(
        path, logging.getLogger("test"), every_seconds=0.02, settle_seconds=0.01
    ) as watch:
        first = watch.access
        write_files(tmp_path)  # the same content, written anew
        path.write_text(TLS + "  min_version: TLS13\n", encoding="utf-8")
        until(lambda: watch.access is not first)

        assert watch.access.tls is not None
        assert watch.access.tls.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_renewed_certificate_takes_effect_only_with_its_key(tmp_path: Path) -> None:
    path = written(tmp_path, TLS)
    with WebConfigWatch(
        path, logging.getLogger("test"), every_seconds=60, settle_seconds=0.01
    ) as watch:
        first = watch.access
        (tmp_path / "cert.pem").write_bytes((tmp_path / "other-cert.pem").read_bytes())
        watch.check_now()
        until(lambda: not watch.status().success)
        assert watch.access is first

        (tmp_path / "key.pem").write_bytes((tmp_path / "other-key.pem").read_bytes())
        watch.check_now()
        until(lambda: watch.status().success)
        assert watch.access is not first


def test_an_invalid_change_has_no_effect_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, TLS)
    with (
        caplog.at_level(logging.INFO),
        WebConfigWatch(
            path, logging.getLogger("test"), every_seconds=0.01, settle_seconds=0.01
        ) as watch,
    ):
        first, since = watch.access, watch.status().last_success_timestamp_seconds
        # Replaced atomically: if rewritten in place, it might be checked twice in between.
        whole = tmp_path / "whole.yml"
        whole.write_text("tracing: {}\n", encoding="utf-8")
        whole.replace(path)
        until(lambda: not watch.status().success)
        looks = watch.status()
        until(lambda: watch.status() is not looks)  # it was checked again

        assert watch.access is first
        last = watch.status().last_success_timestamp_seconds
        assert last is not None
        assert since is not None
        assert last >= since
        told = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(told) == 1
        assert "web.yml:1: tracing: unknown key" in told[0]

        path.write_text(TLS, encoding="utf-8")
        # It is logged by the watch's thread, after the status has changed.
        until(lambda: "again what is in force" in caplog.records[-1].message)
        assert watch.status().success
        assert watch.access is first


def test_an_emptied_file_does_not_disable_tls(tmp_path: Path) -> None:
    """A file is empty while it is rewritten in place, or if the disk is full."""
    path = written(tmp_path, TLS)
    watch = WebConfigWatch(path, logging.getLogger("test"), every_seconds=60, settle_seconds=0.01)
    with watch:
        path.write_text("\n", encoding="utf-8")
        watch.check_now()
        until(lambda: not watch.status().success)
        assert watch.access.tls is not None

        path.write_text("{}\n", encoding="utf-8")
        watch.check_now()
        until(lambda: watch.access.tls is None)


def test_a_partially_written_file_never_takes_effect(caplog: pytest.LogCaptureFixture) -> None:
    """A partial file may be valid and require less."""
    path = Path("web.yml")
    texts = [
        f"basic_auth_users: {{a: {HASH}}}",
        "basic_auth_users: {}",
        f"basic_auth_users: {{b: {HASH}}}",
    ]
    read = iter([WebFiles(path, text.encode()) for text in texts])
    last = WebFiles(path, texts[-1].encode())
    watch = WebConfigWatch(
        path,
        logging.getLogger("test"),
        every_seconds=60,
        settle_seconds=0,
        reading=lambda _: next(read, last),
    )
    with caplog.at_level(logging.INFO), watch:
        first = watch.access
        watch.check_now()
        until(lambda: watch.access is not first)

        assert watch.access.passwords is not None
    assert len(caplog.records) == 1


def test_a_deleted_file_leaves_its_settings_in_force(tmp_path: Path) -> None:
    path = written(tmp_path, TLS)
    with WebConfigWatch(
        path, logging.getLogger("test"), every_seconds=60, settle_seconds=0.01
    ) as watch:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        watch.check_now()
        until(lambda: not watch.status().success)

        assert watch.access.tls is not None


def test_an_unexpected_error_is_counted_and_the_next_check_succeeds(tmp_path: Path) -> None:
    path, trip = written(tmp_path, TLS), threading.Event()

    def reading(path: Path) -> WebFiles:
        if trip.is_set():
            raise ValueError("a bug of ours")
        return read(path)

    log = logging.getLogger("test")
    with WebConfigWatch(path, log, 0.01, 0.01, reading) as watch:
        before = watch.access
        trip.set()
        until(lambda: not watch.status().success)
        assert watch.access is before

        trip.clear()
        until(lambda: watch.status().success)
        assert watch.status().unexpected_failures > 0
