"""`hearth fleet`: orders to many devices over a RabbitMQ broker, and the enrolment of its users.

The orders and all that was heard of them are in an order store (--state), so a command that was killed is followed up
by `hearth fleet watch`. A command that waits says on stderr what stands between (`common.telling`). Exit codes: 0 done,
1 an order was not completed, 2 usage, 3 the broker cannot be reached, or a device has not got the halt in time.
"""

from __future__ import annotations

import click

from hearth.cli.fleet.devices import halt, list_
from hearth.cli.fleet.enrolment import enroll, revoke
from hearth.cli.fleet.orders import submit, watch


@click.group()
def fleet() -> None:
    """Order jobs from many devices over a RabbitMQ broker.

    A SELECTOR is a device's id, or LABEL=PATTERN such as site=lab3 or board=rpi*. Selectors of different labels must
    all hold.
    """


for command in (list_, submit, watch, halt, enroll, revoke):
    fleet.add_command(command)
