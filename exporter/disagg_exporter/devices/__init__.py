"""Devices: what NVML, dcgm-exporter or a simulation says of GPUs, swept on one thread."""
