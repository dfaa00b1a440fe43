"""Outlook of each model, as text, figures and JSON: forecast, trend, and back-tests."""
