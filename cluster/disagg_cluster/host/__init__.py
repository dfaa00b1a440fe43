"""What the kernel tells and keeps for us: folders, files, locks, processes, control groups."""
