"""Splits argument vectors and shell scripts into the simple commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

MAX_TOKENS = 4096
MAX_TOKEN_CHARS = 32 * 1024
MAX_CHARS = 128 * 1024
MAX_DEPTH = 4
# No file name is longer; a search of names tries each end of each of their parts.
MAX_PROGRAM_CHARS = 255
MAX_COMMANDS = 2048
MAX_SUBSHELLS = 32

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "busybox"})
# They also pass what follows their `-c` to a shell.
_SCRIPT_RUNNERS = frozenset({"su", "runuser", "script", "flock"})
OPEN, CLOSE = "(", ")"
"""A command of this one word begins or ends a subshell, which has separate variables."""
_SCRIPT_FLAG = re.compile(r"-[a-zA-Z]*c")
_SEPARATORS = frozenset(";&|\n")
_FLAG_AND_VALUE = re.compile(r"--?[A-Za-z][\w.+-]*\s")


def commands(argv: Sequence[str]) -> list[list[str]]:
    """Return every simple command of a command line; scripts given to a shell are parsed.

    A plain argument vector is one command. A subshell is enclosed in `[OPEN]` and `[CLOSE]`. Input
    beyond the bounds above is cut.
    """
    tokens = list(_bounded(argv))
    if not tokens:
        return []
    if re.search(r"\s", tokens[0].strip()) and not tokens[0].lstrip().startswith("-"):
        return _script(tokens[0], tokens[1:], 0)[:MAX_COMMANDS]
    return _command(tokens, 0)[:MAX_COMMANDS]


def program_name(token: str) -> str:
    """Return a program's bare name, without folders, lower case; empty if it cannot be one."""
    name = token.strip().strip("\"'").rsplit("/", 1)[-1].lower()
    return name if len(name) <= MAX_PROGRAM_CHARS else ""


def _bounded(argv: Sequence[str]) -> Iterator[str]:
    room = MAX_CHARS
    for token in argv[:MAX_TOKENS]:
        cut = token[: min(MAX_TOKEN_CHARS, room)]
        room -= len(cut)
        yield cut
        if room <= 0:
            return


def _command(tokens: list[str], depth: int) -> list[list[str]]:
    """Return the command itself, or those of the script that it passes to a shell or to `eval`."""
    if depth >= MAX_DEPTH:
        return [tokens]
    for at, token in enumerate(tokens[:64]):
        name = program_name(token)
        if name in _SHELLS or (at == 0 and name in _SCRIPT_RUNNERS):
            for flag in range(at + 1, min(len(tokens) - 1, at + 12)):
                if _SCRIPT_FLAG.fullmatch(tokens[flag]):
                    rest = [word for word in tokens[flag + 1 : flag + 3] if word != "--"]
                    return _script(rest[0] if rest else "", tokens[flag + 2 :], depth + 1)
            break
        if token == "eval":
            return _script(" ".join(tokens[at + 1 :]), [], depth + 1)
    return [_split_flag_values(tokens)]


def _script(text: str, arguments: list[str], depth: int) -> list[list[str]]:
    """Return the commands of a script; `arguments` are its `$0`, `$1` and so on."""
    found = [
        command
        for words in _simple_commands(text)
        if words
        for command in _command(list(words), depth)
    ]
    if arguments and re.search(r"\$\{?[@*]", text):
        more = _split_flag_values(arguments)
        found = [c if c in ([OPEN], [CLOSE]) else c + more for c in found] or [more]
    return found


def split_arguments(text: str) -> list[str]:
    """Return the arguments held in one string, as in an environment variable."""
    return _split_flag_values([word for words in _split(text[:MAX_TOKEN_CHARS]) for word in words])


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield a script's words, command by command, with subshell brackets as separate commands."""
    depth = 0
    for words in _split(without_data(text)):
        while words and words[0].startswith(OPEN) and depth < MAX_SUBSHELLS:
            depth += 1
            yield [OPEN]
            words = [word for word in (words[0][1:], *words[1:]) if word]
        closing = 0
        while depth > closing and words and words[-1].endswith(CLOSE) and _is_closing(words[-1]):
            closing += 1
            words = [word for word in (*words[:-1], words[-1][:-1]) if word]
        yield words
        depth -= closing
        yield from [[CLOSE]] * closing


def _is_closing(word: str) -> bool:
    """Return whether its last bracket is unmatched, unlike that of `$(VARIABLE)`."""
    return word.count(CLOSE) > word.count(OPEN)


def _split(text: str) -> Iterator[list[str]]:
    """Yield a script's words, command by command."""
    lines = [_without_comment(line) for line in text.splitlines()]
    joined = re.sub(r"\\[ \t]*(\n|$)", " ", "\n".join(lines))
    try:
        yield from _commands_of(_words(joined))
    except ValueError:
        # A quote without its end would swallow the rest, so each line is parsed separately.
        for line in joined.splitlines():
            try:
                yield from _commands_of(_words(line))
            except ValueError:
                yield [word.strip("\"'") for word in line.split()]


def _commands_of(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word and _SEPARATORS.issuperset(word):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _without_comment(line: str) -> str:
    """Return a line without its comment; a `#` inside quotes that began on that line is kept."""
    for found in re.finditer(r"(?:^|(?<=\s))#", line):
        before = line[: found.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            return before
    return line


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    return list(lexer)


def _split_flag_values(tokens: list[str]) -> list[str]:
    """Split tokens that hold both a flag and its value (`--mode prefill` as one item)."""
    opened: list[str] = []
    for token in tokens:
        bare = unquoted(token)
        if _FLAG_AND_VALUE.match(bare):
            opened.extend(word for words in _split(bare) for word in words)
        else:
            opened.append(bare)
    return opened[:MAX_TOKENS]


def unquoted(text: str) -> str:
    """Return a value without the quotes that a template left around it."""
    bare = text.strip()
    wrapped = len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'"
    return bare[1:-1] if wrapped else bare


MAX_DOCUMENTS = 64

_BEGIN = re.compile(r"<<-?[ \t]*(?P<quote>[\"']?)(?P<end>[A-Za-z_]\w{0,79})(?P=quote)")
_SHELL = re.compile(r"(?:^|[\s;&|(/])(?:ba|da|z|a|k)?sh(?:\s|<|$)")
_WRITTEN_TO = re.compile(r"(?:>>?|\btee(?:\s+-a)?)\s*[\"']?([^\s<>|&;\"']{1,4096})")


def without_data(text: str) -> str:
    """Return a script without those of its here-documents that nothing in it runs.

    A here-document written to a file is kept if the rest of the script names that file.
    """
    if "<<" not in text:
        return text
    kept: list[str] = []
    lines = text.splitlines()
    at = documents = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        kept.append(line)
        found = _BEGIN.search(line) if documents < MAX_DOCUMENTS else None
        if found is None:
            continue
        documents += 1
        end = next((n for n in range(at, len(lines)) if lines[n].strip() == found["end"]), None)
        if end is None:
            continue
        if _is_run(line, "\n".join(lines[end + 1 :])):
            kept.extend(lines[at:end])
        at = end + 1
    return "\n".join(kept)


def _is_run(line: str, rest: str) -> bool:
    if _SHELL.search(line):
        return True
    written = _WRITTEN_TO.search(line)
    name = written[1].rsplit("/", 1)[-1] if written else ""
    return bool(name) and name in rest
