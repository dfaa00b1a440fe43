"""The site's MkDocs hooks: links out of docs/, nothing loaded from other hosts, all runbooks.

Pages link to files of the repository as GitHub needs it (`../examples`). On the site such a link
leads to the repository if `repo_url` names one; else the path is shown as text. MkDocs treats log
messages from here as warnings, which fail a strict build.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks.disagg_node")

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^][]+)\]\((\.\.?/[^)#\s]+)(#[^)\s]*)?\)")
_RUNBOOK = re.compile(r"runbook_url: docs/(\S+)\.md")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect)[^>]*href=["']?(?:https?:)?//"""
)


def on_config(config: Any, **_: Any) -> Any:
    """Set the project's address from pyproject.toml, its only source."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        hooks = tomllib.load(file)["tool"]["hatch"]["metadata"]["hooks"]
    config.repo_url = hooks["custom"]["project-url"] or None
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside docs/; a broken one is a warning."""
    docs = Path(config.docs_dir)

    def replace(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = (docs / page.file.src_path).parent.joinpath(path).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists() or not target.is_relative_to(ROOT):
            log.warning("%s links to %s, which is not there", page.file.src_path, path)
        inside = target.relative_to(ROOT).as_posix()
        if config.repo_url:
            kind = "tree" if target.is_dir() else "blob"
            return f"[{text}]({config.repo_url.rstrip('/')}/{kind}/main/{inside}{anchor})"
        return f"`{inside}`" if text.strip("`") == inside else f"{text} (`{inside}`)"

    return _LINK.sub(replace, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Check that a page loads nothing from another host."""
    for match in _LOADED.finditer(output):
        log.warning("%s loads from another host: %s", page.file.src_path, match[0])
    return output


def on_post_build(*, config: Any, **_: Any) -> None:
    """Check that each alert's runbook is a page of the site, with the ending `.html`."""
    for file in sorted((ROOT / "alerts").rglob("*.yaml")):
        for page in _RUNBOOK.findall(file.read_text(encoding="utf-8")):
            if not (Path(config.site_dir) / f"{page}.html").is_file():
                log.warning("%s leads to %s.html, which the site has not", file.name, page)
