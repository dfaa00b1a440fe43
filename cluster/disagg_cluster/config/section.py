"""What all mappings of a node file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the node file: it knows its keys and takes no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
