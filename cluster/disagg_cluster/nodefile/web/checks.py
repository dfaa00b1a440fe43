"""Checks of a web-config file's values against each other; reads nothing itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from disagg_cluster.config.problems import Finding, YamlPath, nearest
from disagg_cluster.nodefile.web.shape import (
    CURVES,
    OPENSSL_NAMES,
    HttpServerConfig,
    RateLimit,
    TlsServerConfig,
    WebConfig,
    seconds_of,
)

Sure = Callable[[YamlPath], bool]
"""Whether the value at a path is what its author meant: no check relies on others."""

HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that the format knows; some allow only the listed values."""

MOST_COST = 18
"""The highest cost checked: a hash of it takes seconds, beyond it minutes and hours."""

_BCRYPT = re.compile(r"\$2[abxy]?\$(\d\d)\$[./A-Za-z0-9]{53}")
_TLS: YamlPath = ("tls_server_config",)


def check(config: WebConfig, sure: Sure) -> tuple[Finding, ...]:
    """Return all inconsistencies between the values of a file."""
    return (
        *_tls(config.tls_server_config, sure),
        *_headers(config.http_server_config),
        *_users(config.basic_auth_users or {}),
        *_rate(config.rate_limit, sure),
    )


def _tls(tls: TlsServerConfig | None, sure: Sure) -> Iterator[Finding]:
    if tls is None:
        return
    for key in ("cert", "key", "client_ca"):
        inline, path = getattr(tls, key), getattr(tls, f"{key}_file")
        known = sure((*_TLS, key)) and sure((*_TLS, f"{key}_file"))
        if inline and path:
            yield Finding((*_TLS, key), f"given twice, here and in {key}_file", "keep one")
        elif known and not inline and not path and key != "client_ca":
            yield Finding((*_TLS, f"{key}_file"), "missing: TLS needs it")
    if sure((*_TLS, "client_auth_type")):
        yield from _clients(tls, sure)
    if tls.min_version > tls.max_version:
        yield Finding((*_TLS, "min_version"), f"{tls.min_version} is above max_version")
    yield from _known(tls.cipher_suites or (), OPENSSL_NAMES, "cipher_suites", "cipher suite")
    if tls.max_version == "TLS12" and tls.cipher_suites and _only_new(tls.cipher_suites):
        message = "all of them are of TLS 1.3, and max_version is TLS12"
        yield Finding((*_TLS, "cipher_suites"), message)
    yield from _known(tls.curve_preferences or (), CURVES, "curve_preferences", "curve")
    if len(tls.curve_preferences or ()) > 1:
        message = "more than one curve: Python's TLS takes one, or chooses by itself"
        yield Finding((*_TLS, "curve_preferences"), message, "give one, or leave the key out")


def _only_new(suites: tuple[str, ...]) -> bool:
    return all(OPENSSL_NAMES.get(suite) == "" for suite in suites)


def _clients(tls: TlsServerConfig, sure: Sure) -> Iterator[Finding]:
    has_ca = bool(tls.client_ca or tls.client_ca_file)
    asks = tls.client_auth_type not in ("", "NoClientCert")
    if has_ca and not asks:
        message = "client certificates are asked for nowhere"
        hint = "add client_auth_type: RequireAndVerifyClientCert"
        key = "client_ca" if tls.client_ca else "client_ca_file"
        yield Finding((*_TLS, key), message, hint)
    if asks and not has_ca and sure((*_TLS, "client_ca")) and sure((*_TLS, "client_ca_file")):
        # Go would use the system's authorities, so anybody with a certificate for anything.
        message = f"missing: {tls.client_auth_type} needs to know whom to believe"
        yield Finding((*_TLS, "client_ca_file"), message)
    if tls.client_allowed_sans and tls.client_auth_type != "RequireAndVerifyClientCert":
        hint = "add client_auth_type: RequireAndVerifyClientCert"
        message = "names mean nothing without a verified certificate"
        yield Finding((*_TLS, "client_allowed_sans"), message, hint)


def _known(
    given: tuple[str, ...], known: Mapping[str, str], key: str, noun: str
) -> Iterator[Finding]:
    for place, name in enumerate(given):
        if name not in known:
            meant = nearest(name, [word.lower() for word in known])
            hint = next((f"did you mean {w!r}?" for w in known if w.lower() == meant), "")
            yield Finding((*_TLS, key, place), f"{name!r} is no {noun} known here", hint)


def _headers(http: HttpServerConfig | None) -> Iterator[Finding]:
    for name, value in ((http.headers if http else None) or {}).items():
        path = ("http_server_config", "headers", name)
        if name not in HEADERS:
            yield Finding(path, "not a header that can be set", f"these can: {', '.join(HEADERS)}")
        elif value and HEADERS[name] and value not in HEADERS[name]:
            yield Finding(path, f"expected {' or '.join(HEADERS[name])}, not {value!r}")
        elif not re.fullmatch(r"[ -~]*", value):
            yield Finding(path, "expected printable ASCII on one line")


def _users(users: Mapping[str, str]) -> Iterator[Finding]:
    for name, hashed in users.items():
        path = ("basic_auth_users", name)
        if not name or ":" in name:
            yield Finding(path, "a name without a colon, and not an empty one, is needed")
        form = _BCRYPT.fullmatch(hashed)
        if form is None:
            hint = "make one with: htpasswd -nBC 10 NAME"
            yield Finding(path, "expected a bcrypt hash", hint)
        elif not 4 <= int(form[1]) <= MOST_COST:
            yield Finding(path, f"its cost is {int(form[1])}; 4 to {MOST_COST} can be checked")


def _rate(rate: RateLimit | None, sure: Sure) -> Iterator[Finding]:
    if rate is None or not sure(("rate_limit", "interval")):
        return
    seconds = seconds_of(rate.interval)
    if seconds is None:
        message = f'expected a duration such as "100ms", or 0, not {rate.interval!r}'
        yield Finding(("rate_limit", "interval"), message)
    elif seconds > 0 and rate.burst == 0 and sure(("rate_limit", "burst")):
        yield Finding(("rate_limit", "burst"), "with a burst of 0 no request is ever answered")
