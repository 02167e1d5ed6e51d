"""Sensors and buffers of the kernel: IIO, hwmon, 1-Wire, counters."""
