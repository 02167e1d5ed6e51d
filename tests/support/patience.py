"""The patience of an event loop with a helper, for tests: as long as it takes.

Virtual time would pass, and a loaded machine would decide, while a helper's thread has yet to be given its turn.
"""

from hearth._util import threads

PATIENCE_S = 30.0
"""Seconds. A test about a disk that hangs sets less."""


def be_patient() -> None:
    """Wait in place for what the helpers of this process do."""
    threads.PATIENCE_S = PATIENCE_S
