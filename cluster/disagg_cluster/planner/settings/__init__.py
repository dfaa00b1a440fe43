"""The planner file, its sections and their checks."""
