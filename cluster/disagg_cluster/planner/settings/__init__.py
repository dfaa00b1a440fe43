"""What a person says to the planner: the planner file."""
