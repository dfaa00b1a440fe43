"""The planner of a cluster as a service: rounds of reading and looking ahead, and their page."""
