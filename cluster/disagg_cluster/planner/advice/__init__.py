"""A plan put together from what is known of a cluster, and told to people and programs."""
