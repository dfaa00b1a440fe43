"""When cyclic garbage is collected: never while modules load, and rarely in a daemon."""

from __future__ import annotations

import gc

from disagg_cluster.host.garbage import rarely_collected, uncollected


def test_garbage_is_not_collected_until_a_daemon_runs_and_then_rarely() -> None:
    """What was loaded is never scanned again; the previous settings are restored at the end."""
    before = gc.get_threshold()

    with uncollected():
        loading = gc.isenabled()
        with rarely_collected():
            running = gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold() > before

    assert not loading
    assert running == (True, True, True)
    assert (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()) == (True, 0, before)
