"""Which phases' tokens an engine reports: for others 0 would be wrong."""

from __future__ import annotations

from collections.abc import Collection

from disagg_exporter.model.accounts import EngineAccount
from disagg_exporter.model.engines import EngineStatus
from disagg_exporter.model.enums import Phase


def phases_with_tokens(account: EngineAccount, status: EngineStatus | None) -> Collection[Phase]:
    """Return the phases whose tokens its source reports."""
    # A dead engine has no source any more; what it has reported stays.
    if account.method.by_step or any(account.reported.steps):
        return tuple(Phase)
    page = status.page if status is not None and account.method.by_page else None
    if page is None:
        return ()
    totals = {
        Phase.PREFILL: page.computed_tokens_total,
        Phase.DECODE: page.generation_tokens_total,
    }
    return tuple(phase for phase, total in totals.items() if total is not None)
