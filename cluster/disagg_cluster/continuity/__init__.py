"""State that a daemon leaves to its successor: the accounting's checkpoint and what was learned."""
