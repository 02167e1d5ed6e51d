"""One hardware bus: the actor that owns its driver, the queue before it, its workers, and the outputs it has driven."""
