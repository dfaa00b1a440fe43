"""Links of alerts and panels to the page of an alert, wherever people read our runbooks."""

from __future__ import annotations

import re
from dataclasses import dataclass

SHIPPED = "docs/runbooks"
"""The base of shipped links: correct only in a clone, and meant to be replaced."""

_PANEL = re.compile(r"(\$\{runbooks\}/(?:\w+|\$\{__data\.fields\.Alert\}))\.md\b")


@dataclass(frozen=True, slots=True)
class RunbookLinks:
    """Links of the form `base/<alert>ending`.

    GitHub shows files that end in `.md`; pages of the site that `make docs-check` builds end in
    `.html`.
    """

    base: str = SHIPPED
    ending: str = ".md"

    def in_rules(self, text: str) -> str:
        """Return the text of a rules file with its alerts' links replaced."""
        return re.sub(
            rf"(runbook_url: ){SHIPPED}/(\w+)\.md\b",
            lambda link: f"{link[1]}{self._root}/{link[2]}{self.ending}",
            text,
        )

    def in_panels(self, text: str) -> str:
        """Return a dashboard's text with the endings of its panels' `${runbooks}` links set."""
        return _PANEL.sub(lambda link: f"{link[1]}{self.ending}", text)

    @property
    def variable(self) -> str:
        """Value of a dashboard's variable `runbooks`."""
        return self._root

    @property
    def _root(self) -> str:
        return self.base.rstrip("/")
