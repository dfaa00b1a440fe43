"""GPU readings from NVML, dcgm-exporter or a simulation, polled on one thread."""
