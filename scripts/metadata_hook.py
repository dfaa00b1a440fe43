"""The wheel's metadata: the project's address, and a long description for use elsewhere.

The address is `project-url` of pyproject.toml, its only source, empty while the project is not
published: then links into the repository become plain text; else they lead there. Pictures are
left out either way, as they are in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"\[?!\[[^]]*\]\([^)]*\)(?:\]\([^)]*\))?\n*")
_INSIDE = re.compile(r"\[([^]]+)\]\((?!https?:|#)([^)\s]+)\)")
_ANCHOR = re.compile(r"\[([^]]+)\]\(#[^)\s]+\)")


class ProjectMetadata(MetadataHookInterface):
    """Called by the build for the fields that pyproject.toml lists as `dynamic`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields."""
        url = str(self.config["project-url"]).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": read_outside(text, url)}
        metadata["urls"] = {"Source": url, "Documentation": f"{url}/tree/main/docs"} if url else {}


def read_outside(text: str, url: str) -> str:
    """Return a page of the repository for use elsewhere; `url` is the repository's, or empty."""
    text = _ANCHOR.sub(r"\1", _PICTURE.sub("", text))
    return _INSIDE.sub(rf"[\1]({url}/blob/main/\2)" if url else r"\1", text)
