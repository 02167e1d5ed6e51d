"""SPI devices and their registers."""
