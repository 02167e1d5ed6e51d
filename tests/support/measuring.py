"""Where coverage looks away in this process: tests about amounts, whose lines a quicker test has measured already."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager


@contextmanager
def unmeasured_here():
    """Run the body, and the threads it starts, without coverage: actors under a virtual clock run twice as fast."""
    here, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(in_threads)
        sys.settrace(here)
