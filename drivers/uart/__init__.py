"""Serial ports as tools use them; `serial_port` moves their bytes."""
