"""The values that the terminal view shows: built from readings, drawn by `screen`."""
