"""The demo: stand-in engines, a load for them, and the small models of the tests."""
