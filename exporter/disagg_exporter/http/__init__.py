"""HTTP: the client that fetches pages, and the server of our own."""
