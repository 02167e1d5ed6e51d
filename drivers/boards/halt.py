"""The section `[halt]` of a board profile, under the name by which the bus of the halt imports it."""

from hearth.drivers.profile import (
    HaltInput as HaltInput,
    HaltSpec as HaltSpec,
    Heartbeat as Heartbeat,
    StopEntry as StopEntry,
)
