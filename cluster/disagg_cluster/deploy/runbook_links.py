"""Where alerts and panels lead to: the page of an alert, wherever people read our runbooks."""

from __future__ import annotations

import re
from dataclasses import dataclass

SHIPPED = "docs/runbooks"
"""Where links lead as they are shipped: right in a clone only, and there to be replaced."""

_PANEL = re.compile(r"(\$\{runbooks\}/(?:\w+|\$\{__data\.fields\.Alert\}))\.md\b")


@dataclass(frozen=True, slots=True)
class RunbookLinks:
    """Links of the form `base/<alert>ending`.

    GitHub shows files that end in `.md`; of the site that `make docs-check` builds the pages end
    in `.html`.
    """

    base: str = SHIPPED
    ending: str = ".md"

    def in_rules(self, text: str) -> str:
        """The text of a file of rules, its alerts leading there."""
        return re.sub(
            rf"(runbook_url: ){SHIPPED}/(\w+)\.md\b",
            lambda link: f"{link[1]}{self._root}/{link[2]}{self.ending}",
            text,
        )

    def in_panels(self, text: str) -> str:
        """The text of a dashboard, the links of its panels ending so; they begin by a variable."""
        return _PANEL.sub(lambda link: f"{link[1]}{self.ending}", text)

    @property
    def variable(self) -> str:
        """What a dashboard's variable `runbooks` is set to."""
        return self._root

    @property
    def _root(self) -> str:
        return self.base.rstrip("/")
