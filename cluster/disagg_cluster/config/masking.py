"""Masks secrets in users' texts: passwords in URLs, tokens, values of keys.

For all that is shown or logged. What merely looks like a secret is masked, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"

_SECRET_WORDS = frozenset(
    ("key", "keys", "apikey", "token", "secret", "secrets", "password", "passwd", "passphrase")
) | frozenset(("pwd", "credential", "credentials", "auth", "authorization", "bearer"))
_NO_SECRET_ENDS = frozenset(("file", "files", "path", "dir", "folder"))
# None scans a character repeatedly: a text of a megabyte must not take minutes.
_WORD = re.compile(r"[^\s'\"]++")
# A URL without its scheme: `name:password@`.
_USER = re.compile(r"(?<![^(\[,=])[^/:@(\[,=]++:(?!//)")
_GIVEN = re.compile(
    r"(?<![\w.-])([\w.-]++)(=|:\s++|['\"]\s*+:\s*+)(?:(['\"]).*?(?:\3|\Z)|[^\s'\",}]+)", re.DOTALL
)
_TOKEN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|nvapi-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}"
    r"|\b(?:Bearer|Basic) +[\w.~+/=-]{6,}"
)


def is_secret_name(name: str) -> bool:
    """Whether something of this name (an option, a variable, a key) may be a secret."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", spaced) if word]
    return not _SECRET_WORDS.isdisjoint(words) and words[-1] not in _NO_SECRET_ENDS


def urls_masked(text: str) -> str:
    """Return a text without the names and passwords of URLs in it."""
    return _WORD.sub(_url_masked, text)


def masked(text: str) -> str:
    """Return a text with its secrets masked."""
    text = urls_masked(_TOKEN.sub(MASK, text))
    return _GIVEN.sub(_masked_value, _WORD.sub(_user_masked, text))


def masked_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of options masked that may be secrets."""
    before = ("", *arguments)
    return tuple(
        MASK if follows_secret(earlier) else masked(argument)
        for earlier, argument in zip(before, arguments, strict=False)
    )


def follows_secret(argument: str) -> bool:
    """Whether the next argument is the value of this one, and may be a secret."""
    return argument.startswith("-") and "=" not in argument and is_secret_name(argument)


def _url_masked(word: re.Match[str]) -> str:
    before, at, after = word[0].rpartition("@")
    scheme, colon, _ = before.partition("://")
    return f"{scheme}://{MASK}@{after}" if at and colon else word[0]


def _user_masked(word: re.Match[str]) -> str:
    before, at, after = word[0].rpartition("@")
    user = _USER.search(before) if at else None
    return f"{before[: user.start()]}{MASK}@{after}" if user else word[0]


def _masked_value(match: re.Match[str]) -> str:
    name, sign, quote = match.groups()
    return f"{name}{sign}{quote or ''}{MASK}{quote or ''}" if is_secret_name(name) else match[0]
