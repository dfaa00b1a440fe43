"""A node file as far as it can be understood, so that one mistake does not hide another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from disagg_cluster.config import NodeConfig, Section, Worker
from disagg_cluster.config.problems import Finding, YamlPath, path_text
from disagg_cluster.config.values import FOLDER
from disagg_cluster.nodefile.messages import Violation, shown, value_at, violations
from disagg_cluster.nodefile.shape import find_entry

Shape = TypeVar("Shape", bound=Section)

_PLACEHOLDERS = {
    **{"name": "unnamed", "role": "mixed", "model": "unknown", "port": 1, "connector": "?"},
    **{"currency": "XXX", "per_hour": 1.0, "url": "http://127.0.0.1:1"},
}
"""Values for required keys that are missing or wrong; nothing is concluded from them."""

_LEFT_OUT = "(left out)"
"""Stands where a worker was, so that those after it keep their places."""


@dataclass(frozen=True)
class Draft:
    """A configuration made of what could be understood, and the paths that could not.

    `positions` are the places in the file of `config.workers`: a worker that is no mapping at
    all is left out.
    """

    config: NodeConfig
    positions: tuple[int, ...]
    doubts: tuple[YamlPath, ...] = ()

    @cached_property
    def workers(self) -> tuple[tuple[int, Worker], ...]:
        """The workers with their places in the file."""
        return tuple(zip(self.positions, self.config.workers, strict=True))

    @property
    def complete(self) -> bool:
        """Whether every worker of the file is here, if perhaps not with every value."""
        return not any(doubt[:1] == ("workers",) and len(doubt) <= 2 for doubt in self.doubts)

    def sure(self, *path: object) -> bool:
        """Whether the value at `path`, or its absence, is what the file's author meant."""
        if path in self._above_doubts:
            return False
        return not any(path[:length] in self._in_doubt for length in range(len(path) + 1))

    def label(self, position: int) -> str:
        """What to call a worker in a message."""
        path = ("workers", position)
        name = self._names.get(position)
        return name if name and self.sure(*path, "name") else path_text(path)

    @cached_property
    def _names(self) -> dict[int, str]:
        return {position: worker.name for position, worker in self.workers}

    @cached_property
    def _in_doubt(self) -> frozenset[YamlPath]:
        return frozenset(self.doubts)

    @cached_property
    def _above_doubts(self) -> frozenset[YamlPath]:
        return frozenset(doubt[:length] for doubt in self.doubts for length in range(len(doubt)))


def understand(raw: object, folder: Path | None = None) -> tuple[Draft | None, tuple[Finding, ...]]:
    """Make a configuration of what YAML gave, with all that does not fit its shape.

    The draft is None where nothing of the file can be understood.

    Args:
        raw: The data.
        folder: From where relative paths count; they stay relative if None.
    """
    findings: list[Finding] = []
    raw, config, found = validated(raw, NodeConfig, findings, folder)
    if config is None:
        return _salvage(raw, found, folder), tuple(findings)
    return Draft(config, tuple(range(len(config.workers)))), tuple(findings)


def validated(
    raw: object, root: type[Shape], findings: list[Finding], folder: Path | None = None
) -> tuple[object, Shape | None, tuple[Violation, ...]]:
    """Make of what YAML gave a file of any shape, and add to `findings` all that does not fit it.

    Return what can be looked at of the data, the file if it fits, and how it does not.
    """
    raw = _text_keys_only(raw, (), findings)
    try:
        return raw, root.model_validate(raw, context={FOLDER: folder}), ()
    except ValidationError as error:
        found = violations(error.errors(include_url=False, include_context=False), raw, root)
    findings += [violation.finding for violation in found]
    return raw, None, found


def _text_keys_only(value: object, at: YamlPath, findings: list[Finding]) -> object:
    """A copy of the data without keys that are not text, which pydantic could not place."""
    if isinstance(value, dict):
        kept = {}
        for key, item in value.items():
            if isinstance(key, str) and _is_unicode(key):
                kept[key] = _text_keys_only(item, (*at, key), findings)
            else:
                message = f"expected text as a key, not {shown(key)}"
                findings.append(Finding((*at, key), message, "put it in quotes"))
        return kept
    if isinstance(value, list):
        return [_text_keys_only(item, (*at, n), findings) for n, item in enumerate(value)]
    return value


def _is_unicode(text: str) -> bool:
    """Whether it is text to others, too: YAML lets halves of characters (surrogates) pass."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _salvage(raw: object, found: Iterable[Violation], folder: Path | None) -> Draft | None:
    doubts = {doubt for violation in found for doubt in violation.doubts}
    rest = without(raw, {violation.leave_out for violation in found})
    for doubt in doubts:
        if find_entry(doubt).required:
            _put(rest, doubt, _PLACEHOLDERS[str(doubt[-1])])
    positions: tuple[int, ...] = ()
    if isinstance(rest, dict) and isinstance(rest.get("workers"), list):
        kept = [
            (place, worker) for place, worker in enumerate(rest["workers"]) if worker != _LEFT_OUT
        ]
        positions = tuple(place for place, _ in kept)
        rest["workers"] = [worker for _, worker in kept]
    try:
        config = NodeConfig.model_validate(rest, context={FOLDER: folder})
        return Draft(config, positions, tuple(doubts))
    except ValidationError:
        return None


def without(value: object, paths: set[YamlPath], at: YamlPath = ()) -> object:
    """A copy of the data without what is at `paths`."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if (*at, key) not in paths}
        return {key: without(item, paths, (*at, key)) for key, item in kept.items()}
    if isinstance(value, list):
        return [
            _LEFT_OUT if (*at, place) in paths else without(item, paths, (*at, place))
            for place, item in enumerate(value)
        ]
    return value


def _put(value: object, path: YamlPath, item: object) -> None:
    holder = value_at(path[:-1], value)
    if isinstance(holder, dict):
        holder[path[-1]] = item
