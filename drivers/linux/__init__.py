"""Drivers over the kernel's own interfaces: GPIO character devices, I2C adapters, serial ports and sysfs.

`hearth.drivers.sim` has the simulated ones, which pass the same tests. Nothing here knows a board or a tool.
"""
