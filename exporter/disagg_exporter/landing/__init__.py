"""The page for people: a node's GPUs by phase over the last minute, and what is wrong with it."""
