"""gRPC: a second way to the same core, through doors that know who comes in."""
