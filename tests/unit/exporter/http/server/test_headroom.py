"""Clients never get the last descriptors."""

from __future__ import annotations

import resource

import pytest

from disagg_exporter.http.server.admission import RESERVED_DESCRIPTORS, is_scarce


@pytest.mark.parametrize(
    ("descriptor", "soft_limit", "scarce"),
    [
        (64 - RESERVED_DESCRIPTORS - 1, 64, False),
        (64 - RESERVED_DESCRIPTORS, 64, True),
        (70, 64, True),  # the limit was lowered since
        (10**6, resource.RLIM_INFINITY, False),
        (3, None, False),
    ],
)
def test_a_descriptor_near_the_soft_limit_is_scarce(
    descriptor: int, soft_limit: int | None, scarce: bool
) -> None:
    assert is_scarce(descriptor, soft_limit) is scarce
