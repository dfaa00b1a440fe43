"""The node daemon and the cluster's planner: everything that configures, launches or decides."""
