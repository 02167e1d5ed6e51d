"""One hardware bus: the actor that owns its driver, its ticket queue, its workers, and its record of driven outputs."""
