"""The dashboard of several clusters."""
