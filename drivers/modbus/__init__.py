"""Modbus lines, their devices and registers."""
