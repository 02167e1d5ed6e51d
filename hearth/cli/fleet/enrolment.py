"""`hearth fleet enroll` and `revoke`: users at the broker, their permissions, queues and certificates."""

from __future__ import annotations

import datetime as dt
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.fleet.enrolment import Part


@click.command()
@click.argument("directory", metavar="DIR")
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@click.option("--as", "part", type=click.Choice(("device", "caller", "operator")), default="device", show_default=True)
@click.option("--vhost", default="/", show_default=True, help="The virtual host of the fleet.")
@click.option("--history", is_flag=True, help="Also make the stream hearth.history, of all events.")
@click.option("--rabbitmqctl", default="rabbitmqctl", show_default=True, help="The broker's command, with options.")
@click.option("--no-import", is_flag=True, help="Only write the files; import them where the broker runs.")
@click.option("--days", default=398, show_default=True, help="Days that the certificates hold.")
@standard
def enroll(
    options: Options,
    directory: str,
    names: Sequence[str],
    part: Part,
    vhost: str,
    history: bool,
    rabbitmqctl: str,
    no_import: bool,
    days: int,
) -> int:
    """Give each ID a user at the broker with permissions for its part, its queues, and a certificate by the CA in DIR.

    `hearth admin tls init DIR` makes the CA, and a server's certificate for the broker. A device reads its own orders
    only, and publishes as itself only; a caller hears its own events only; an operator is a caller that may halt the
    fleet. Which caller may order what is the policy of each device.
    """
    from hearth.cli.certificate_files import authority_in, write_all
    from hearth.fleet.enrolment import definitions, policy_lines
    from hearth.transport import certificates

    made = definitions(dict.fromkeys(names, part), vhost, history=history)
    folder, now = Path(directory).absolute(), dt.datetime.now(dt.UTC)
    authority = authority_in(folder, now)
    write_all(folder, {name: certificates.issue_client(authority, name, now, days) for name in names})
    file = folder / f"{names[0]}.definitions.json"
    file.write_bytes(orjson.dumps(made, option=orjson.OPT_INDENT_2))
    if not no_import:
        _run(rabbitmqctl, "import_definitions", str(file))
    policy = "\n".join(line for name in names for line in (*policy_lines(name, part), ""))
    told = {} if part == "device" else {"policy": policy}
    if options.json:
        click.echo(common.compact({"ids": list(names), "definitions": str(file), "imported": not no_import, **told}))
        return DONE
    done = "are enrolled" if not no_import else f"are prepared; run `rabbitmqctl import_definitions {file}`"
    click.echo(f"{', '.join(names)} {done}. Certificates: {folder}/ID.pem and ID.key, with {folder}/ca.pem")
    if told:
        click.echo(
            f"In the hearth.toml of each device that takes these orders, beside an entry for its own user:\n\n{policy}"
        )
    return DONE


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@click.option("--vhost", default="/", show_default=True, help="The virtual host of the fleet.")
@click.option("--rabbitmqctl", default="rabbitmqctl", show_default=True, help="The broker's command, with options.")
@standard
def revoke(options: Options, names: Sequence[str], vhost: str, rabbitmqctl: str) -> int:
    """Delete the users of these IDs at the broker, close their connections, and delete their queues.

    Their certificates are good for nothing here from then on. A device goes on with the jobs that it has accepted.
    """
    from hearth.hcp import l1

    for name in names:
        if not l1.is_id(name):
            raise ConfigError(f"{common.clean(name)!r} is no id")
        _run(rabbitmqctl, "delete_user", name)
        _run(rabbitmqctl, "close_all_user_connections", name, "revoked by hearth fleet revoke")
        for queue in (l1.command_queue(name), l1.halt_queue(name), l1.event_queue(name)):
            _run(rabbitmqctl, "delete_queue", "--vhost", vhost, queue, missing="not found")
    click.echo(common.compact({"revoked": list(names)}) if options.json else f"{', '.join(names)} revoked")
    return DONE


def _run(rabbitmqctl: str, *words: str, missing: str | None = None) -> None:
    """Run rabbitmqctl. Raises ConfigError with what it says, unless that is what may be missing."""
    command = [*shlex.split(rabbitmqctl), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        cure = "run this where the broker is, or name its command with --rabbitmqctl"
        raise ConfigError(f"{command[0]}: {error.strerror}; {cure}") from None
    said = (done.stderr or done.stdout).strip()
    if done.returncode and not (missing is not None and missing in said.lower()):
        raise ConfigError(f"{shlex.join(command)}: {common.clean(said[:500])}")
