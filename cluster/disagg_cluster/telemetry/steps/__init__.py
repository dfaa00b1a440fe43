"""Receives the engines' step records and passes them on to accounting."""
