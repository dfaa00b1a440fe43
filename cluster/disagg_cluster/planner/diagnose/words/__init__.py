"""A diagnosis as it is told: to people in 80 columns, to programs as JSON."""
