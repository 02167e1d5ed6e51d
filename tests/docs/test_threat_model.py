"""docs/threat-model.md claims what tests prove: every test that it names exists, every bound is the one in the code."""

from __future__ import annotations

import re

import pytest
from docs.player import ROOT
from docs.test_promises import names_of_tests

from hearth._util.text import LONGEST_COMPARED, MOST_COMPARED
from hearth.actors import admission, attestation, connection, loop, observe, refusals, send_queue
from hearth.actors.approval import plans
from hearth.actors.bridges.amqp.connection import BrokerSettings
from hearth.actors.bridges.http import connection as http_connection, server
from hearth.actors.bus import outputs_file
from hearth.actors.listeners import accept, tcp, websocket, websocket_stream as wire
from hearth.amqp.connection import LONGEST_FRAME
from hearth.audit import backlog, verify
from hearth.config.model import Config
from hearth.drivers.modbus.codec import MOST_STRAYS
from hearth.drivers.modbus.tcp import TcpPort
from hearth.drivers.serial_port.settings import INBOX_CAPACITY
from hearth.policy import memory
from hearth.policy.rules import Rate
from hearth.protocol import jsonrpc, methods
from hearth.protocol.known import LONGEST_NAME, MOST_NAMED

PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
LIMITS, TASKS, WEBSOCKET, HCP = Config().limits, Config().tasks, Config().websocket, Config().hcp
SESSIONS = Rate.parse(LIMITS.session_rate)
AMQP = BrokerSettings().limits
MIB, KIB = 1 << 20, 1 << 10


@pytest.mark.parametrize("name", NAMED)
def test_every_test_that_the_page_names_exists(name: str) -> None:
    assert name in names_of_tests()


def test_every_kind_of_attacker_has_its_tests_and_what_remains() -> None:
    kinds = PAGE.partition("## In short")[2].partition("## Denial of service")[0].split("\n## ")[1:]
    assert len(kinds) == 12
    for kind in kinds[:-1]:
        assert "**What remains.**" in kind, kind.partition("\n")[0]
        assert "`test_" in kind, kind.partition("\n")[0]


def bound(row: str) -> list[float]:
    """The numbers in a row's second cell, without thousands separators."""
    (cell,) = re.findall(rf"^\| {re.escape(row)} \| ([^|]+) \|", PAGE, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))]


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ("Connections in all", [LIMITS.max_connections, accept.FOR_OTHERS]),
        ("Connections to the halt socket", [accept.MOST_HALTING, accept.MOST_HALTING_EACH]),
        ("Descriptors", [accept.RESERVED, accept.RESERVED // 2]),
        ("Unauthenticated connections", [accept.MOST_UNKNOWN_PEERS, accept.MOST_UNKNOWN_PEERS_EACH, 6, 64]),
        ("Their time to authenticate", [LIMITS.handshake_timeout_s]),
        ("A handshake's request line and headers", [wire.HANDSHAKE_BYTES / KIB]),
        (
            "Data on a WebSocket without a complete message",
            [wire.SLACK / KIB, wire.REFILL / KIB, wire.CONTROL_COST / KIB, wire.FRAME_COST],
        ),
        ("A request", [LIMITS.max_document_bytes / MIB]),
        ("Requests of one connection under way", [LIMITS.max_outstanding, connection.WEIGHTY_AT_ONCE]),
        ("The values in a document", [LIMITS.max_values]),
        ("Unknown names in a request", [MOST_NAMED, LONGEST_NAME, LONGEST_COMPARED, MOST_COMPARED]),
        ("A batch", [LIMITS.max_batch, connection.BATCH_BYTES / MIB]),
        ("Data waiting to be sent to one connection", [send_queue.HIGH_WATER / MIB]),
        ("The time in which a peer reads nothing", [LIMITS.send_timeout_s]),
        ("A frame of a broker", [LONGEST_FRAME / KIB]),
        ("A delivery of a broker", [AMQP.body / MIB, AMQP.properties / KIB]),
        ("A silent broker", [BrokerSettings().heartbeat]),
        ("An HTTP request's line and headers", [server.HEADER_BYTES / KIB, LIMITS.handshake_timeout_s]),
        (
            "The framing of an HTTP body: chunk lines, extensions, trailers",
            [server.HEADER_BYTES / KIB, server.FRAMING_EACH],
        ),
        ("An HTTP request's body", [LIMITS.max_document_bytes / MIB, LIMITS.send_timeout_s]),
        ("An idle HTTP connection", [http_connection.KEEP_ALIVE]),
        ("MCP clients over HTTP", [LIMITS.max_sessions_per_principal, LIMITS.max_connections]),
        ("Jobs over HCP", [HCP.max_jobs, HCP.max_jobs_per_principal, HCP.max_steps]),
        ("Artifacts of jobs", [HCP.max_artifact_bytes / MIB, HCP.max_artifacts_bytes / MIB, HCP.retention_s]),
        ("A silent WebSocket", [WEBSOCKET.ping_interval_s, WEBSOCKET.ping_timeout_s]),
        (
            "A peer that vanished",
            [
                tcp.KEEPALIVE[tcp.socket.TCP_KEEPIDLE]
                + tcp.KEEPALIVE[tcp.socket.TCP_KEEPINTVL] * tcp.KEEPALIVE[tcp.socket.TCP_KEEPCNT]
            ],
        ),
        ("Sessions", [LIMITS.max_sessions_per_principal, LIMITS.idle_ttl_s]),
        ("Events kept for observers", [observe.MOST_KEPT, observe.MOST_KEPT_BYTES / MIB, observe.KEEP_S]),
        ("Audit records in one answer to an observer", [methods.MOST_RECORDS, verify.MOST_PAGE_BYTES / MIB]),
        ("An answer", [jsonrpc.PIECE / KIB]),
        (
            "Plans",
            [LIMITS.max_plans_per_principal, plans.MOST_PLANS, plans.MOST_PLAN_BYTES / KIB, LIMITS.plan_ttl_s],
        ),
        ("Tasks", [LIMITS.max_tasks_per_session, LIMITS.max_steps, LIMITS.task_history]),
        ("Idempotency keys", [TASKS.max_idempotency_keys, TASKS.idempotency_days, memory.KEY_BYTES]),
        ("Memory kept for clients", [LIMITS.max_retained_bytes / MIB, LIMITS.max_retained_total_bytes / MIB]),
        (
            "Control loops of an embedding program",
            [LIMITS.max_sessions_per_principal, loop.MOST_LINES, loop.MAX_HZ, loop.AUTHORITY_S],
        ),
        ("A bus's queue", [LIMITS.bus_queue]),
        ("The list of driven outputs and their levels", [outputs_file.MOST_BYTES / MIB]),
        (
            "Bytes of a Modbus device that are kept, and its answers to other requests",
            [INBOX_CAPACITY / KIB, TcpPort._SETTINGS.inbox_bytes / KIB, MOST_STRAYS],
        ),
        ("Records that cannot be written", [backlog.MOST_KEPT, backlog.MOST_KEPT_BYTES / MIB]),
        ("Sessions and jobs that one principal starts", [SESSIONS.count, SESSIONS.period_s]),
        ("Statements (`attest.quote`) for one principal", [attestation.RATE.count]),
        ("Dry runs of one principal", [admission.DRY_RUN_RATE.count, admission.DRY_RUN_RATE.period_s]),
        ("Records of refusals of one principal, of each kind", [Rate.parse(LIMITS.reject_rate).count]),
        (
            "Records of failed authentications",
            [refusals.ADDRESS_RATE.count, 6, refusals.TOTAL_RATE.count],
        ),
    ],
)
def test_every_bound_on_the_page_is_the_one_in_the_code(row: str, numbers: list[float]) -> None:
    assert bound(row) == numbers


def test_no_row_of_bounds_is_left_out() -> None:
    table = PAGE.partition("## Denial of service")[2].partition("\n\nSlow bytes")[0]
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) - 2 == 44


def test_what_is_said_of_messages_is_so() -> None:
    assert websocket.UNREAD_MESSAGES + 1 == 2, "two messages and 64 KiB"
