"""One hardware bus: the actor that owns its driver, its queue and driven outputs, and what stands before the driver."""
