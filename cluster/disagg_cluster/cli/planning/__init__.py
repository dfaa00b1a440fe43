"""The commands that look ahead: one file each, and where they take the load of the past from."""
