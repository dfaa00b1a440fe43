"""Which engine should change its role, when that pays, and what it would have brought."""
