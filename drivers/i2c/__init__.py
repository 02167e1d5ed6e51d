"""I2C adapters, the devices on them, and their registers."""
