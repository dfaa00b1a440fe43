"""How many of the process's descriptors clients never get: the rest of it has work to do, too."""

from __future__ import annotations

import resource

RESERVED_DESCRIPTORS = 16


def is_scarce(descriptor: int, soft_limit: int | None = None) -> bool:
    """Whether so few descriptors are left that a client should not have got this one.

    The kernel gives the lowest number that is free, so a high one says that those below are taken.

    Args:
        descriptor: What a client was given.
        soft_limit: One more than the largest number; as the kernel says now if None.
    """
    if soft_limit is None:
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return False
    return descriptor >= soft_limit - RESERVED_DESCRIPTORS
