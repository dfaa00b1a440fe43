"""Here-documents of a script: what is given to a shell is run, what is given to others is data."""

from __future__ import annotations

import re

MAX_DOCUMENTS = 64

_BEGIN = re.compile(r"<<-?[ \t]*(?P<quote>[\"']?)(?P<end>[A-Za-z_]\w{0,79})(?P=quote)")
_SHELL = re.compile(r"(?:^|[\s;&|(/])(?:ba|da|z|a|k)?sh(?:\s|<|$)")
_WRITTEN_TO = re.compile(r"(?:>>?|\btee(?:\s+-a)?)\s*[\"']?([^\s<>|&;\"']{1,4096})")


def without_data(text: str) -> str:
    """A script without those of its here-documents that nothing in it runs.

    One that is written to a file is run if the rest of the script names that file.
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
