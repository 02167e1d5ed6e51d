"""Converters: voltages, currents and resistances."""
