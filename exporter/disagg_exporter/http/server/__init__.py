"""HTTP server of the metrics page: admission, TLS, passwords, routes."""
