"""docs/howto/run-a-fleet.md says what is so: its blocks are played before a real broker with its settings."""

from __future__ import annotations

import re

import pytest
from docs.player import ROOT, acts, blocks, matches, play
from fleet.bench import documented
from support.rabbitmq import MISSING, RabbitMq, installed

pytestmark = pytest.mark.proof
PAGE = (ROOT / "docs/howto/run-a-fleet.md").read_text("utf-8")
WAIT = """
wait_for_list() {
    for _ in $(seq 100); do hearth fleet list 2>&1 | grep -q "$1" && return 0; sleep 0.1; done
    return 1
}
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory, unmeasured):
    """The page's acts with their outcomes."""
    if not installed():
        pytest.skip(MISSING)
    home = tmp_path_factory.mktemp("fleet")
    broker = RabbitMq(tmp_path_factory.mktemp("broker"), **documented())
    page = PAGE.replace("broker.example", f"localhost:{broker.tls_port}")
    for place in ("/etc/hearth/fleet", "/run/hearth", "/var/lib/hearth"):
        page = page.replace(place, f"{home}/fleet" if place.endswith("fleet") else str(home))
    made = play([], home, "hearth admin tls init ~/fleet --host localhost\n")
    assert made == []
    # The broker has the settings of the page, with its own ports and files.
    conf = broker.folder / "rabbitmq.conf"
    text = conf.read_text()
    for key in ("cacertfile", "certfile", "keyfile"):
        named = re.search(rf"^ssl_options\.{key} = /etc/rabbitmq/fleet/(\S+)$", PAGE, re.MULTILINE)
        assert named is not None
        text = re.sub(
            rf"^ssl_options\.{key} = .*$", f"ssl_options.{key} = {home}/fleet/{named[1]}", text, flags=re.MULTILINE
        )
    for line in ("ssl_options.verify = verify_peer", "ssl_cert_login_from = common_name"):
        assert line in PAGE
        assert line in text
    conf.write_text(text)
    broker.start()
    assert broker.evaluate("application:get_env(rabbit, background_gc_enabled)") == "{ok,true}"
    assert broker.evaluate("element(2, erlang:system_info(fullsweep_after))") == "0"
    environment = " ".join(f"{key}='{value}'" for key, value in broker.environment.items())
    (home / "rabbitmqctl").write_text(f'#!/bin/sh\nexec env {environment} /usr/lib/rabbitmq/bin/rabbitmqctl "$@"\n')
    (home / "rabbitmqctl").chmod(0o755)
    page_acts = list(acts(blocks(page)))
    try:
        before = f'export PATH="{home}:$PATH" HEARTH_SOCKET="{home}/hearth.sock"\n{WAIT}'
        # A device that has just started announces itself a moment later.
        ordered = [
            one._replace(shell=f"wait_for_list arm-7; {one.shell}") if "fleet list" in one.shell else one
            for one in page_acts
        ]
        yield list(zip(page_acts, play(ordered, home, before), strict=True))
    finally:
        broker.close()


def test_the_page_run_a_fleet_md_does_what_it_says(played) -> None:
    for act, outcome in played:
        assert outcome.code == act.code, f"run-a-fleet.md:{act.line}: {act.shell}\n{outcome.output}"
        if act.expected:
            assert matches(act.expected, outcome.output), f"run-a-fleet.md:{act.line}: {act.shell}:\n{outcome.output}"
    assert len(played) >= 10


def test_rabbitmq_takes_the_settings_of_the_three_nodes(tmp_path) -> None:
    if not installed():
        pytest.skip(MISSING)
    (block,) = blocks((ROOT / "docs/explanation/fleet.md").read_text("utf-8"))
    broker = RabbitMq(tmp_path / "broker")
    conf = broker.folder / "rabbitmq.conf"
    own = conf.read_text().replace("disk_free_limit.absolute = 1MB\n", "")
    # Each of the three is this node: it waits for no other, and forms a cluster of its own.
    conf.write_text(own + re.sub(r"rabbit@mq\d\.example", broker.node, block.text))
    try:
        broker.start()
        for key, value in (
            ("cluster_partition_handling", "pause_minority"), ("vm_memory_high_watermark", "0.6"),
            ("disk_free_limit", "{mem_relative,1.0}"),
        ):  # fmt: skip
            assert broker.evaluate(f"element(2, application:get_env(rabbit, {key}))") == value
        assert broker.node in broker.evaluate("application:get_env(rabbit, cluster_nodes)")
    finally:
        broker.close()
