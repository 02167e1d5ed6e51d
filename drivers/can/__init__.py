"""CAN buses, their messages and signals."""
