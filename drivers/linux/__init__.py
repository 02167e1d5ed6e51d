"""The kernel's own interfaces: GPIO character devices, I2C adapters, serial ports and sysfs, driven for real.

Beside `hearth.drivers.sim`, which passes the same tests. Nothing here knows a board or a tool.
"""
