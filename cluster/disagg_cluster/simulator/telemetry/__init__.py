"""What simulated engines report: pages and step records."""
