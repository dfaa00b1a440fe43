"""Access to kernel facilities: folders, files, locks, processes, control groups."""
