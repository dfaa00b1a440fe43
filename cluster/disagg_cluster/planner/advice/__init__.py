"""A plan from what is known of a cluster, and its output for people and programs."""
