"""A process belongs to a worker if its traits could be no other process's."""

import pytest

from disagg_cluster.supervisor.ownership.adoption import ProcessEvidence, proves_worker


@pytest.mark.parametrize(
    ("writes", "fits", "mark", "port", "proven"),
    [
        (True, True, False, False, True),
        (True, False, True, False, True),
        (True, False, False, True, True),
        (True, False, False, False, False),
        (False, True, True, True, True),
        (False, True, True, False, True),
        (False, True, False, True, False),
        (False, False, True, True, False),
        (False, False, False, False, False),
    ],
)
def test_a_worker_is_proven_by_its_log_and_one_trait_or_by_arguments_and_mark(
    writes: bool, fits: bool, mark: bool, port: bool, proven: bool
) -> None:
    assert proves_worker(ProcessEvidence(writes, fits, mark, port)) is proven
