"""What a wheel says of the project: its address, and a long description that reads well anywhere.

The address is `project-url` of pyproject.toml, the only place that has it, empty while it
is published nowhere: then links into the repository are their words alone; else they lead there.
Pictures are left out either way: they lie in the repository.
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
        """Set them."""
        url = str(self.config["project-url"]).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": read_outside(text, url)}
        metadata["urls"] = {"Source": url, "Documentation": f"{url}/tree/main/docs"} if url else {}


def read_outside(text: str, url: str) -> str:
    """A page of the repository as it reads elsewhere; `url` is that of the repository, or empty."""
    text = _ANCHOR.sub(r"\1", _PICTURE.sub("", text))
    return _INSIDE.sub(rf"[\1]({url}/blob/main/\2)" if url else r"\1", text)
