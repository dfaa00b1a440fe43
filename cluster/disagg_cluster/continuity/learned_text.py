"""What was learned of engines, as values and as text: bounded, and only for the same identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from disagg_cluster.config.values import Section
from disagg_cluster.supervisor.journal.journal_text import first_problem
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.pages.prefill_shares import LearnedShares
from disagg_exporter.capacity.curves.curve import LearnedLimits
from disagg_exporter.errors import DisaggError

VERSION: Final = 3
ENGINE_BYTES: Final = 256 * 1024
"""Most bytes kept per engine; beyond it, older and rarer steps are left out, the fits never."""
MOST_ENGINES: Final = 128
FILE_BYTES: Final = MOST_ENGINES * ENGINE_BYTES + 1024
STALE_SECONDS: Final = 86_400.0
"""What no engine has used for a day is dropped."""
_MOST_HALVINGS = 12


class LearnedError(DisaggError):
    """Data that cannot be trusted, or written; the text says why."""


class LearnedIdentity(Section):
    """Identity that learned data belongs to; another model, device, command or version voids it.

    `role` is the configured one, empty where it is inferred. `build` is a digest of the command
    that an engine was started with, or, for an engine started by others, its version and a digest.
    `ranks` are the data-parallel ranks on the page of such an engine: they may come and go.
    """

    engine: str
    kind: str
    role: str
    model_name: str
    gpus: tuple[str, ...]
    gpu_names: tuple[str, ...]
    build: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class EngineLearned:
    """All that was learned of one engine: step costs by rank, limits, costs by its page."""

    costs: tuple[tuple[int, LearnedCost], ...] = ()
    limits: LearnedLimits = field(default_factory=LearnedLimits)
    shares: LearnedShares | None = None

    def __post_init__(self) -> None:
        """Check what types cannot express."""
        ranks = [rank for rank, _ in self.costs]
        if len(set(ranks)) < len(ranks) or any(rank < 0 for rank in ranks):
            raise ValueError("costs: a rank stands there twice, or is negative")

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self.observations > 0

    @property
    def observations(self) -> int:
        """Number of observations behind it: steps, stretches and samples of step times."""
        steps = sum(sum(cost.steps) for _, cost in self.costs)
        return steps + self.limits.samples + (self.shares.stretches if self.shares else 0)

    def lighter(self) -> EngineLearned:
        """Return it with about half of its samples."""
        return EngineLearned(
            tuple((rank, cost.lighter()) for rank, cost in self.costs),
            self.limits.lighter(),
            self.shares and self.shares.lighter(),
        )


class LearnedEntry(Section):
    """What was learned of one engine, and when (Unix) it was last used."""

    identity: LearnedIdentity
    timestamp_seconds: float = Field(ge=0, allow_inf_nan=False)
    learned: EngineLearned


class StoredEntry(NamedTuple):
    """An entry as stored in the file."""

    timestamp_seconds: float
    text: bytes


class _LearnedDocument(BaseModel, strict=True, extra="forbid"):
    version: Literal[3]
    engines: tuple[LearnedEntry, ...]


_ENTRY = TypeAdapter(LearnedEntry)


def encode_entry(entry: LearnedEntry) -> StoredEntry:
    """Return an entry as text of at most `ENGINE_BYTES`, dropping samples as needed.

    Raises:
        LearnedError: It is too long even with the fewest samples.
    """
    for _ in range(_MOST_HALVINGS):
        text = _ENTRY.dump_json(entry)
        if len(text) <= ENGINE_BYTES:
            return StoredEntry(entry.timestamp_seconds, text)
        entry = entry.model_copy(update={"learned": entry.learned.lighter()})
    raise LearnedError(f"{entry.identity.engine}: more than {ENGINE_BYTES} bytes")


def decode_entry(stored: StoredEntry) -> LearnedEntry:
    """Parse an entry that `encode_entry` or `decode` has produced."""
    return _ENTRY.validate_json(stored.text)


def encode(stored: Iterable[StoredEntry]) -> bytes:
    """Return the whole text of a file: the `MOST_ENGINES` entries that were used last."""
    latest = sorted(stored, key=lambda entry: entry.timestamp_seconds, reverse=True)
    entries = b",\n".join(entry.text for entry in latest[:MOST_ENGINES])
    return b'{"version":%d,"engines":[\n%b\n]}\n' % (VERSION, entries)


def decode(text: bytes, now_seconds: float) -> Mapping[LearnedIdentity, StoredEntry]:
    """Return the entries of a file that were used within the last day.

    Raises:
        LearnedError: It is torn, too long, of an unknown version, or holds impossible values.
    """
    if len(text) > FILE_BYTES:
        raise LearnedError(f"it has more than {FILE_BYTES} bytes")
    try:
        file = _LearnedDocument.model_validate_json(text)
    except ValidationError as error:
        problem = first_problem(error)
        if problem.startswith("version: "):
            raise LearnedError(
                f"its version is not {VERSION}: another disagg-node wrote it"
            ) from None
        raise LearnedError(f"it is torn or none of ours: {problem}") from None
    if len(file.engines) > MOST_ENGINES:
        raise LearnedError(f"it names {len(file.engines)} engines, at most {MOST_ENGINES} are kept")
    return {
        entry.identity: encode_entry(entry)
        for entry in file.engines
        if now_seconds - entry.timestamp_seconds <= STALE_SECONDS
    }
