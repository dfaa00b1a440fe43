"""Links to other pages on the web page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class PageLinks:
    """Addresses of other pages, as a reader's browser reaches them; empty where not configured."""

    planner: str = ""
    prometheus: str = ""
    grafana: str = ""


def link_items(links: PageLinks) -> str:
    """Return the items of a list: the known links, and where verdicts over several nodes are."""
    return "\n".join(f"<li>{item}</li>" for item in _items(links))


def _items(links: PageLinks) -> Iterator[str]:
    if links.grafana:
        yield f"{_link(links.grafana, 'Grafana')}: dashboards, days back"
    if links.prometheus:
        yield f"{_link(links.prometheus, 'Prometheus')}: every series, and alerts that fire"
    # A node knows only its own engines.
    planner = _link(links.planner, "the planner's page") if links.planner else ""
    whose = planner or "disagg-node diagnose (docs/diagnosis.md)"
    yield f"Which engine of several nodes holds users' first tokens back, and why: {whose}"


def _link(url: str, text: str) -> str:
    return f'<a href="{escape(url)}/">{text}</a>'
