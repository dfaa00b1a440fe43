"""The planner of a cluster as a service: rounds of reading and forecasting, and their page."""
