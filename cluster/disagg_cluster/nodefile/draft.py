"""A node file as far as it can be understood, so that one mistake does not hide another.

Also what the checks of a draft may ask the machine that the file is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
"""Values for required keys that are missing or wrong; no check relies on them."""

_LEFT_OUT = "(left out)"
"""Marks the place of a removed worker, so that later ones keep their positions."""


@dataclass(frozen=True)
class Draft:
    """A configuration of what could be understood, and the paths of what could not.

    `positions` are the places of `config.workers` in the file: a worker that is not a mapping is
    left out.
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
        """Whether every worker of the file is included, if perhaps without some values."""
        return not any(doubt[:1] == ("workers",) and len(doubt) <= 2 for doubt in self.doubts)

    def sure(self, *path: object) -> bool:
        """Return whether the value at `path`, or its absence, is what the file's author meant."""
        if path in self._above_doubts:
            return False
        return not any(path[:length] in self._in_doubt for length in range(len(path) + 1))

    def label(self, position: int) -> str:
        """Return what to call a worker in a message."""
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


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks ask a machine: whether a path exists, whether a program can be run.

    `installed` returns whether a Python package exists, by its import name. The others return a
    reason, empty if none is known: `why_no_folder` why a path is not a folder and cannot become
    one, `why_no_engine` why a worker's interpreter cannot run its engine, and `why_no_model` why
    the engine cannot read its model.
    """

    exists: Callable[[str], bool]
    executable: Callable[[str], bool]
    why_no_folder: Callable[[str], str] = lambda _path: ""
    why_no_engine: Callable[[Worker], str] = lambda _worker: ""
    why_no_model: Callable[[Worker], str] = lambda _worker: ""
    installed: Callable[[str], bool] = lambda _package: True


def understand(raw: object, folder: Path | None = None) -> tuple[Draft | None, tuple[Finding, ...]]:
    """Return a draft made from YAML data, and all that does not fit its shape.

    The draft is None if nothing of the file can be understood.

    Args:
        raw: The data.
        folder: The base of relative paths; they stay relative if None.
    """
    findings: list[Finding] = []
    raw, config, found = validated(raw, NodeConfig, findings, folder)
    if config is None:
        return _salvage(raw, found, folder), tuple(findings)
    return Draft(config, tuple(range(len(config.workers)))), tuple(findings)


def validated(
    raw: object, root: type[Shape], findings: list[Finding], folder: Path | None = None
) -> tuple[object, Shape | None, tuple[Violation, ...]]:
    """Validate YAML data as a file of any shape; add what does not fit to `findings`.

    Return the data without keys that are not text, the file if it fits, and its violations.
    """
    raw = _text_keys_only(raw, (), findings)
    try:
        return raw, root.model_validate(raw, context={FOLDER: folder}), ()
    except ValidationError as error:
        found = violations(error.errors(include_url=False, include_context=False), raw, root)
    findings += [violation.finding for violation in found]
    return raw, None, found


def _text_keys_only(value: object, at: YamlPath, findings: list[Finding]) -> object:
    """Return a copy of the data without keys that are not text, which pydantic cannot report."""
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
    """Return whether it is valid Unicode: YAML accepts halves of characters (surrogates)."""
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
    """Return a copy of the data without what is at `paths`."""
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
