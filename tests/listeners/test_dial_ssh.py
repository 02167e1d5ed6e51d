"""ssh:// with a program in ssh's place: what it is given, what is made of how it ends, and that it does end.

The real ssh, with a real sshd, has its own tests (tests/system/test_ssh.py).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest
import trio

import hearth
from hearth import CarrierError, ConfigError
from hearth.transport import open_stream, ssh
from hearth.transport.address import SshAddress, parse
from hearth.transport.ssh import command, remote_command

PATIENCE = 60
ANSWER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"session_id": "S1"}}), flush=True)
"""


@pytest.fixture
async def bounded():
    with trio.fail_after(PATIENCE):
        yield


@pytest.fixture
def fake(tmp_path, monkeypatch, bounded):
    """`fake("print()")`: ssh is that Python program, from now on."""
    path = tmp_path / "ssh program"

    def install(program):
        path.write_text(program)
        monkeypatch.setenv("HEARTH_SSH", shlex.join([sys.executable, "-I", "-S", str(path)]))

    return install


@pytest.fixture(autouse=True)
def _others():
    """What runs already is somebody else's: servers that many tests share."""
    children.others = set(psutil.Process().children(recursive=True))


def children():
    """The processes that a test has started, and that still run."""
    return [child for child in psutil.Process().children(recursive=True) if child not in children.others]


async def use(address="ssh://arm"):
    async with hearth.connect(address) as client, client.open_session() as session:
        return session.session_id


# --- what it is given -----------------------------------------------------------------------------------------------


def words(address, **environ):
    return command(parse(address), {"PATH": os.environ["PATH"], **environ})


def test_the_command_line_ends_with_the_host_and_one_word_for_the_remote_shell() -> None:
    program, *options = words("ssh://arm.local")
    assert program.endswith("/ssh")
    assert options[0] == "-T"
    assert "RemoteCommand=none" in options
    assert options[-3:] == ["--", "arm.local", "hearth connect --ready"]
    assert "ConnectTimeout=10" in options
    assert "-p" not in options
    assert "-l" not in options


def test_user_and_port_are_options_and_the_socket_is_the_remote_commands() -> None:
    options = words("ssh://pi@[fe80::1%25eth0]:2222/run/h.sock")
    assert options[options.index("-p") + 1] == "2222"
    assert options[options.index("-l") + 1] == "pi"
    assert options[-3:] == ["--", "fe80::1%eth0", "hearth connect --ready --socket /run/h.sock"]


def test_hearth_ssh_is_split_as_a_shell_does_and_its_options_come_first() -> None:
    options = words("ssh://arm", HEARTH_SSH=f"{sys.executable} -F 'a b' -o ConnectTimeout=3")
    assert options[:6] == [sys.executable, "-F", "a b", "-o", "ConnectTimeout=3", "-T"]


@pytest.mark.parametrize("value", ["no-such-ssh -v", "'unclosed"])
def test_an_ssh_that_is_not_there_is_a_config_error_with_the_cure(value) -> None:
    with pytest.raises(ConfigError, match="HEARTH_SSH"):
        words("ssh://arm", HEARTH_SSH=value)
    with pytest.raises(ConfigError, match="install openssh-client"):
        command(parse("ssh://arm"), {"PATH": "/nowhere"})
    with pytest.raises(ConfigError, match="HEARTH_SSH"):
        words("ssh://arm", HEARTH_SSH=" ")


@pytest.mark.parametrize("value", ["%20", "'unclosed"])
def test_a_remote_command_that_is_none_is_a_config_error(value) -> None:
    with pytest.raises(ConfigError, match="hearth="):
        words(f"ssh://arm?hearth={value}")


@pytest.mark.parametrize("name", ["a b", "$(touch pwned)", "a'b\"c", "; exit 9 #", "`x`", "-x", "*", "ü\\", "~"])
def test_nothing_of_an_address_is_more_than_a_word_to_the_remote_shell(tmp_path, name) -> None:
    folder = tmp_path / "its folder"
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv))\n")
    program.chmod(0o755)
    address = SshAddress("arm", socket=f"/run/{name}", hearth=shlex.join([str(program), name]))
    done = subprocess.run(
        ["/bin/sh", "-c", remote_command(parse(str(address)))],
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert json.loads(done.stdout) == [str(program), name, "connect", "--ready", "--socket", f"/run/{name}"]
    assert os.listdir(tmp_path) == ["its folder"]


def test_a_home_directory_is_left_for_the_remote_shell_to_find(tmp_path) -> None:
    asked = remote_command(parse("ssh://arm?hearth=~/my venv/bin/hearth".replace(" ", "%5C%20")))
    assert asked == "~/'my venv/bin/hearth' connect --ready"


# --- how it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_session_is_opened_over_its_pipes(fake) -> None:
    fake(f"print(flush=True){ANSWER}")
    assert await use() == "S1"
    assert not children()


@pytest.mark.slow
async def test_what_comes_with_the_sign_that_it_is_ready_is_not_lost(fake) -> None:
    fake("import sys; sys.stdout.write('\\n{\"early\":1}\\n'); sys.stdout.flush(); sys.stdin.read()")
    async with open_stream(parse("ssh://arm")) as stream:
        assert await stream.receive_some(3) == b'{"e'
        assert await stream.receive_some() == b'arly":1}\n'


@pytest.mark.slow
async def test_one_direction_can_be_closed_and_the_other_goes_on(fake) -> None:
    fake("import sys; print(flush=True); said = sys.stdin.read(); sys.stdout.write(said.upper())")
    async with open_stream(parse("ssh://arm")) as stream:
        await stream.wait_send_all_might_not_block()
        await stream.send_all(b"words\n")
        await stream.send_eof()
        assert await stream.receive_some() == b"WORDS\n"
        assert await stream.receive_some() == b""


@pytest.mark.slow
async def test_an_ssh_that_talks_without_end_does_not_stop_the_connection(fake) -> None:
    fake(f"import sys; sys.stderr.write('warning\\n' * 500000); print(flush=True){ANSWER}")
    assert await use() == "S1"


ENDINGS = {
    "unknown host key": (255, "Host key verification failed.", r"`ssh arm`, once by hand, shows the host's key"),
    "changed host key": (255, "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nno", "find out why"),
    "not let in": (255, "pi@arm: Permission denied (publickey).", "ssh-copy-id"),
    "too many keys": (255, "Received disconnect: Too many authentication failures", "ssh-add -l"),
    "no such host": (255, "ssh: Could not resolve hostname arm: Name or service not known", "alias"),
    "refused": (255, "ssh: connect to host arm port 22: Connection refused", "is sshd running there"),
    "timeout": (255, "ssh: connect to host arm port 22: Connection timed out", "firewall"),
    "no route": (255, "ssh: connect to host arm port 22: No route to host", "on this network"),
    "something else": (255, "kex_exchange_identification: banana", r"banana \(ssh, exit 255\); `ssh arm` by hand"),
    "nothing said": (255, "", r"it failed \(ssh, exit 255\)"),
    "no hearth there": (127, "sh: 1: hearth: not found", r"no command hearth .*\?hearth=/path"),
    "no daemon there": (3, "hearth: no daemon at /x: start one with `hearthd`", "no daemon at /x: start one"),
    "another program": (0, "hello", r"is it `hearth connect` that runs there\?; it says: hello"),
    "a command of another kind": (2, "usage: hearth FILE", r"usage: hearth FILE \(ssh, exit 2\)"),
}


@pytest.mark.parametrize(("status", "said", "told"), ENDINGS.values(), ids=ENDINGS)
@pytest.mark.slow
async def test_how_it_ended_is_told_in_words_with_the_cure(fake, status, said, told) -> None:
    fake(f"import sys; sys.stderr.write({said + os.linesep!r}); sys.exit({status})")
    with pytest.raises(CarrierError, match=f"cannot connect to ssh://arm: .*{told}"):
        await use()
    assert not children()


@pytest.mark.slow
async def test_the_cure_names_user_and_port(fake) -> None:
    fake("import sys; sys.exit('Permission denied')")
    with pytest.raises(CarrierError, match=r"`ssh -p 2222 pi@arm` must work without hearth first"):
        await use("ssh://pi@arm:2222")


@pytest.mark.slow
async def test_an_ssh_that_was_killed_is_told_by_the_signal(fake) -> None:
    fake("import os; os.kill(os.getpid(), 15)")
    with pytest.raises(CarrierError, match="ssh was ended by SIGTERM"):
        await use()


@pytest.mark.slow
async def test_an_ssh_that_cannot_be_started_is_told(fake, monkeypatch) -> None:
    fake("")
    monkeypatch.setattr(trio.lowlevel, "open_process", partial(_failing, trio.lowlevel.open_process))
    with pytest.raises(CarrierError, match="cannot start ssh: Argument list too long"):
        await use()


async def _failing(open_process, argv, **options):
    """The kernel's own refusal: more arguments than it takes."""
    return await open_process([*argv, *["x" * 100_000] * 50], **options)


@pytest.mark.slow
async def test_a_login_shell_that_talks_is_told_what_it_said(fake) -> None:
    fake("print('Welcome to \\x1b[1mArm OS', flush=True); input()")
    with pytest.raises(CarrierError, match=r"it says 'Welcome to \[1mArm OS' before hearth does.*send it to stderr"):
        await use()


@pytest.mark.slow
@pytest.mark.slow
async def test_an_ssh_that_never_gets_there_is_waited_for_only_so_long(fake, monkeypatch) -> None:
    monkeypatch.setattr(ssh, "DEADLINE", 0.5)
    fake("import sys, time; print('patience', file=sys.stderr, flush=True); time.sleep(60)")
    with pytest.raises(CarrierError, match=r"no daemon answers at ssh://arm within 0\.5 s"):
        await use()
    assert not children()


@pytest.mark.slow
async def test_its_end_in_the_middle_is_told_to_who_reads_and_to_who_writes(fake) -> None:
    fake("import sys; print(flush=True); input(); sys.exit('client_loop: send disconnect: Broken pipe')")
    async with open_stream(parse("ssh://arm")) as stream:
        await stream.send_all(b"go\n")
        with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
            await stream.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
            await stream.send_all(b"more\n")


@pytest.mark.slow
async def test_pipes_that_close_before_the_process_ends_are_told(fake, monkeypatch) -> None:
    monkeypatch.setattr(ssh, "EXIT_TIMEOUT_S", 0.2)
    fake("import os, time; os.close(1); os.close(0); time.sleep(60)")
    with pytest.raises(CarrierError, match="ssh has closed its end"):
        await use()
    assert not children()


@pytest.mark.parametrize("deaf_to", [(), (signal.SIGTERM,)])
@pytest.mark.slow
async def test_an_ssh_that_does_not_end_is_ended(fake, monkeypatch, deaf_to) -> None:
    monkeypatch.setattr(ssh, "EXIT_TIMEOUT_S", 0.2)
    fake(
        f"import signal, time\nfor number in {[int(each) for each in deaf_to]}: signal.signal(number, signal.SIG_IGN)\n"
        "print(flush=True)\nwhile True: time.sleep(60)"
    )
    async with open_stream(parse("ssh://arm")):
        assert len(children()) == 1
    assert not children()


@pytest.mark.slow
async def test_what_its_children_hold_open_is_not_waited_for(fake) -> None:
    """As a master connection does, which ssh leaves in the background."""
    fake(
        "import os, sys, time\npid = os.fork()\n"
        "if pid == 0:\n    time.sleep(600)\n"
        "print(file=sys.stdout)\nprint(pid, flush=True)\nsys.stdin.read()"
    )
    async with open_stream(parse("ssh://arm")) as stream:
        child = psutil.Process(int(await stream.receive_some()))
        await stream.send_eof()
    assert child.is_running()
    child.kill()


@pytest.mark.slow
async def test_cancelling_at_any_point_leaves_no_process_and_no_descriptor(fake, monkeypatch) -> None:
    monkeypatch.setattr(ssh, "EXIT_TIMEOUT_S", 0.2)
    fake(f"print(flush=True){ANSWER}")
    await use()
    before = len(os.listdir("/proc/self/fd"))
    for turns in range(0, 80, 4):
        async with trio.open_nursery() as nursery:

            async def cancel_soon(nursery=nursery, turns=turns):
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_soon)
            await use()
        assert not children()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
async def test_ctrl_c_is_not_for_it(fake) -> None:
    fake(f"import signal; assert signal.getsignal(2) == signal.SIG_IGN; print(flush=True){ANSWER}")
    assert await use() == "S1"
