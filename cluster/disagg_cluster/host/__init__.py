"""What the kernel reports and keeps for us: folders, files, locks, processes, control groups."""
