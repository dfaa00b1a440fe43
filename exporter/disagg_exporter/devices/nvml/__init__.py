"""GPUs as NVML reports them: inventory, health, processes, events."""
