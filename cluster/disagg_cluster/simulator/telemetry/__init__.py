"""Reports of simulated engines: pages and step records."""
