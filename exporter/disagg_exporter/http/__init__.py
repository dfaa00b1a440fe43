"""Both ends of HTTP: the pages that we ask for, and the one that we serve."""
