"""gRPC transport for the control core, behind proxies that identify each client."""
