"""GPUs as NVML tells of them: inventory, health, processes, events."""
