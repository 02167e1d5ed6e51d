"""Worlds in a test process leave what the daemon says to its operator as loud as it was."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def as_loud_as_before():
    """A world silences the daemon's own log, of which tests that come later in this process ask."""
    loggers = [logging.getLogger(name) for name in ("hearth", "hearth.daemon")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
