"""What found engines are called: clean, short, unique on the node, the same when they return."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2s

from disagg_cluster.discovery.sightings.types import FoundEngine

MAX_NAME = 63
MAX_REMEMBERED = 1024

_ODD = re.compile(r"[^a-z0-9]+")


def clean_name(wish: str) -> str:
    """A name of a-z, 0-9 and -, at most 63 long; cut names stay different by a digest."""
    bare = _ODD.sub("-", wish[:4096].lower()).strip("-") or "engine"
    if len(bare) <= MAX_NAME:
        return bare
    digest = blake2s(wish.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{bare[: MAX_NAME - 9].rstrip('-')}-{digest}"


class Names:
    """Gives each engine its name, and a returning one the name that it had.

    Args:
        taken: Names that are never given: those of the workers of the node file.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = frozenset(taken)
        self._by_key: dict[str, str] = {}

    @property
    def by_key(self) -> Mapping[str, str]:
        """The names that are remembered, by what their engines are recognised by."""
        return self._by_key

    def resume(self, by_key: Mapping[str, str]) -> None:
        """Remember the names that a daemon before gave."""
        self._by_key |= {key: name for key, name in by_key.items() if name not in self._taken}

    def name(self, engines: Sequence[FoundEngine]) -> tuple[FoundEngine, ...]:
        """Return the engines with their names; no two of them have the same."""
        used: dict[str, FoundEngine] = {}
        # Those that never went keep their names before others come back to theirs.
        left = self._recognise(engines, used, surely=True)
        for engine in self._recognise(left, used, surely=False):
            used[self._free(clean_name(engine.wish), used)] = engine
        named = tuple(replace(engine, name=name) for name, engine in used.items())
        for engine in named:
            self._remember(engine)
        return named

    def _recognise(
        self, engines: Sequence[FoundEngine], used: dict[str, FoundEngine], *, surely: bool
    ) -> list[FoundEngine]:
        """Give engines the names that they had; return those that are new."""
        new: list[FoundEngine] = []
        for engine in engines:
            keys = engine.keys[:1] if surely else engine.keys
            known = (self._by_key[key] for key in keys if key in self._by_key)
            name = next((name for name in known if name not in used), None)
            if name is None:
                new.append(engine)
            else:
                used[name] = engine
        return new

    def _free(self, wish: str, used: dict[str, FoundEngine]) -> str:
        # Names of engines that may return are theirs, too, as long as they are remembered.
        held = self._taken | used.keys() | set(self._by_key.values())
        number, name = 1, wish
        while name in held:
            number += 1
            name = f"{wish[: MAX_NAME - 6]}-{number}"
        return name

    def _remember(self, engine: FoundEngine) -> None:
        for key in engine.keys:
            self._by_key.pop(key, None)
            self._by_key[key] = engine.name
        while len(self._by_key) > MAX_REMEMBERED:
            self._by_key.pop(next(iter(self._by_key)))
