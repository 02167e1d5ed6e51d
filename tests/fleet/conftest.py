"""A real broker, and real daemons that dial it: what the tests of the fleet have."""

from __future__ import annotations

import itertools

import pytest
from fleet.bench import Device
from support.rabbitmq import killable as killable, rabbitmq as rabbitmq

pytestmark = pytest.mark.slow
_NUMBERS = itertools.count(1)


@pytest.fixture
def name():
    """A name that no other test of this process uses at the shared broker."""
    return f"n{next(_NUMBERS)}"


@pytest.fixture
def device(rabbitmq, tmp_path, name):
    """A daemon with the id "dev-NAME", whose user it is; the user "call-NAME" may order anything from it."""
    made = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[f"call-{name}"])
    yield made.connect()
    made.end()
