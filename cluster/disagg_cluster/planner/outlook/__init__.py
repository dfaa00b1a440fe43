"""What lies before each model, for people and programs: forecast, trend, and how good they were."""
