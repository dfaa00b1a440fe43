"""A worker's move from one role to another as pure decisions, step by step, with rollback."""
