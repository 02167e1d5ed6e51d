"""Serial ports: their settings, descriptors, and a terminal in place of one; for every kind that speaks over one."""
