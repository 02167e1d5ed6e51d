"""Simulators of the buses that the real drivers serve: every program can be developed without hardware.

Each keeps the contract suite of its kind (tests/drivers). Import the module you need:
`hearth.drivers.sim.gpio`, `.i2c`, `.uart`, `.can`.
"""
