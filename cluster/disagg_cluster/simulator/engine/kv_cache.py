"""The KV cache of one engine: blocks per sequence, and reusable prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class Shared:
    """The blocks of one prefix, and the number of sequences that use them now."""

    identity: int
    blocks: int
    users: int


@dataclass(slots=True)
class Holding:
    """Blocks of one sequence: its own, and the first `shared_blocks` of `shared`."""

    own_blocks: int = 0
    shared_blocks: int = 0
    shared: Shared | None = None


class KvCache:
    """Blocks of `block_tokens` tokens, paged as in vLLM (Kwon et al., SOSP 2023).

    Unused prefixes are kept until their blocks are needed, and evicted least recently used first;
    so they count as free.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.used_blocks = 0
        self._prefixes: dict[int, Shared] = {}
        self._unused: OrderedDict[int, Shared] = OrderedDict()
        self._unused_blocks = 0

    @property
    def usage_ratio(self) -> float:
        """Blocks in use, 0 to 1."""
        return self.used_blocks / self.blocks

    def blocks_of(self, tokens: int) -> int:
        """Return the number of blocks for `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def find(self, identity: int, holding: Holding, most_tokens: int) -> int:
        """Let `holding` share a cached prefix; return how many tokens that saves.

        At most `most_tokens`, and whole blocks only.
        """
        shared = self._prefixes.get(identity)
        if shared is None:
            return 0
        blocks = min(shared.blocks, most_tokens // self.block_tokens)
        if not blocks:
            return 0
        if not shared.users:
            del self._unused[identity]
            self._unused_blocks -= shared.blocks
            self.used_blocks += shared.blocks
        shared.users += 1
        holding.shared, holding.shared_blocks = shared, blocks
        return blocks * self.block_tokens

    def hold(self, holding: Holding, tokens: int) -> bool:
        """Grow `holding` to `tokens` tokens; without room, change nothing and return False."""
        more = -(-tokens // self.block_tokens) - holding.own_blocks - holding.shared_blocks
        if more <= 0:
            return True
        if more > self.blocks - self.used_blocks:
            return False
        self.used_blocks += more
        holding.own_blocks += more
        while self._unused_blocks > self.blocks - self.used_blocks:
            identity, oldest = self._unused.popitem(last=False)
            self._unused_blocks -= oldest.blocks
            del self._prefixes[identity]
        return True

    def publish(self, identity: int, holding: Holding, tokens: int) -> None:
        """Let others share the first `tokens` tokens of `holding`, which are computed now."""
        blocks = tokens // self.block_tokens
        shared = self._prefixes.get(identity)
        if shared is None and holding.shared is None and blocks:
            holding.shared = self._prefixes[identity] = Shared(identity, 0, users=1)
        elif shared is None or shared is not holding.shared:
            return
        mine = holding.shared
        # A sequence that shares only a part of it does not know what follows.
        if mine is not None and blocks > mine.blocks == holding.shared_blocks:
            holding.own_blocks -= blocks - mine.blocks
            holding.shared_blocks = mine.blocks = blocks

    def release(self, holding: Holding) -> None:
        """Release all its blocks; a prefix without users stays cached."""
        self.used_blocks -= holding.own_blocks
        shared = holding.shared
        if shared is not None:
            shared.users -= 1
            if not shared.users:
                self.used_blocks -= shared.blocks
                self._unused[shared.identity] = shared
                self._unused_blocks += shared.blocks
        holding.own_blocks, holding.shared_blocks, holding.shared = 0, 0, None

    def steps_with_room(self, growing: Collection[tuple[Holding, int]], steps: int) -> int:
        """Return how many of `steps` steps fit, each of which adds one token to every holding.

        `growing` are holdings with their current tokens.
        """
        free_blocks = self.blocks - self.used_blocks
        fitting, failing = 0, steps + 1
        while failing - fitting > 1:
            middle = (fitting + failing) // 2
            if sum(self._more(held, tokens + middle) for held, tokens in growing) <= free_blocks:
                fitting = middle
            else:
                failing = middle
        return fitting

    def always_fits(self, holdings: int, tokens: int) -> bool:
        """Return whether so many holdings can grow by `tokens` tokens each, in the worst case."""
        return holdings * (self.blocks_of(tokens) + 1) <= self.blocks - self.used_blocks

    def _more(self, holding: Holding, tokens: int) -> int:
        return max(0, self.blocks_of(tokens) - holding.own_blocks - holding.shared_blocks)
