"""What the HACP draft asks for, sentence by sentence, and what the design decides beyond it.

A copy (of draft-sunyi-hacp-protocol-00), because the draft is not part of this repository. White space is folded; a row
of a table is its cells joined by " | ". The level is the key word of the sentence, which is there once for each that
it has; sentences that state a rule in the present tense, without a key word, have the level "is". A test names the
sentence it proves with `@pytest.mark.spec(section, level, sentence)`, and a decision with
`@pytest.mark.spec("design 8: POINT")`.
"""

from __future__ import annotations

from conformance.card_sentences import CARD
from conformance.hcp_sentences import HCP
from conformance.reading import Sentence as Sentence, read

DRAFT = read(
    """
# 1 Introduction
1.1 | is | Tool: A single named capability registered at server startup. A tool has a name, a risk level, a JSON Schema
    for its arguments, and a validate/execute pair on the server side.
1.1 | is | Task: An intent plus an ordered list of steps. Each step invokes a single tool.
1.1 | is | A task has exactly one identifier and one terminal status.
1.1 | is | Session: An authenticated context between an agent and a server, identified by a server-generated session
    identifier.
1.1 | REQUIRED | A conformant server is one that implements the methods marked "Required" in Section 3 and obeys the
    framing, error, and lifecycle rules in Section 2 and Section 5.
1.1 | REQUIRED | A conformant client is one that issues only well-formed requests per Section 2, honors the
    lifecycle in Section 5, and treats unknown optional fields as defined in Section 2.5.

# 2 Wire format
2.1 | MUST | HACP MUST use JSON-RPC 2.0 [JSONRPC] over UTF-8 encoded JSON [RFC8259].
2.1 | is | Every request is a JSON object with at least:
2.1 | is | Every response is either a result:
2.1 | is | or an error (see Section 6):
2.2 | is | The default framing is line-delimited JSON: each request and response is a single JSON document followed
    by exactly one LF (0x0A).
2.2 | MUST NOT | Clients MUST NOT split a single document across multiple LF boundaries.
2.2 | MUST | Servers MUST accept arbitrary whitespace between documents.
2.2 | MAY | Alternative framings (Content-Length headers, WebSocket frames) MAY be negotiated by transport binding
    documents (see Section 10).
2.3 | MUST | id — JSON-RPC request identifier; MUST be unique per connection while outstanding.
2.3 | is | Strings, integers, or null are allowed; null indicates a notification (no response expected).
2.3 | is | session_id — opaque server-generated string returned by session.open.
2.3 | MUST | MUST be at most 64 bytes drawn from [0-9a-zA-Z_-].
2.3 | is | task_id — opaque server-generated string returned by task.submit. Same constraints as session_id.
2.4 | is | UTF-8 only.
2.4 | is | Numbers fit in IEEE 754 double precision unless explicitly declared otherwise in a method's schema.
2.4 | MUST | Binary payloads (for example file.read contents) MUST be encoded using base64 as defined in [RFC4648].
2.5 | MUST | Servers MUST ignore unknown fields in params.
2.5 | MUST | Clients MUST ignore unknown fields in result.
2.5 | MUST | New error codes MUST be additive (no re-purposing of existing numbers).
2.5 | SHOULD | Tool authors SHOULD version breaking-change tools by appending .v2 (for example gpio.set.v2) rather
    than mutating the original.

# 3 Core methods
3 | MUST | The following methods make up the HACP Core and MUST be implemented by every conformant server.
3 | SHOULD | task.events | SHOULD | Server-sent task progress (see Section 8)
3 | MAY | attest.* | MAY | Device or agent attestation (see Section 11)
3 | MAY | mcp.* | MAY | MCP-bridge introspection (see Section 10.1)
3.1 | MUST | The server MUST allocate a fresh session_id and MAY advertise capability flags.
3.1 | MAY | The server MUST allocate a fresh session_id and MAY advertise capability flags.
3.1 | SHOULD | client_name | string | SHOULD | Free-form e.g. "ai-shell"
3.1 | SHOULD | client_version | string | SHOULD | Semantic version
3.1 | MAY | protocol_version | string | MAY | Highest HACP version supported
3.1 | MAY | The server MAY reject session.open with RPC_PERMISSION_DENIED if authentication fails.
3.1 | is | Authentication is transport-bound (see Section 10).
3.2 | is | Result: { "ok": true }
3.2 | MUST | Closing a session MUST cancel any tasks still owned by it.
3.3 | is | Result: { "tools": [ { "name": "gpio.set", "version": 1, "risk_level": 2, "timeout_ms": 1000,
    "supports_rollback": true, "description": "Set a GPIO line to 0 or 1.", "params_schema": { "type": "object" } } ] }
3.3 | is | risk_level is one of:
3.3 | is | 0 | safe | Pure read; no side effects
3.3 | is | 1 | low | Local mutation, easily reversible
3.3 | is | 2 | medium | Physical actuation or cross-process effect
3.3 | is | 3 | high | Irreversible, destructive, or safety-critical
3.3 | MUST | Clients MUST treat unknown additional tool fields as opaque and preserve them when forwarding.
3.4 | is | Steps run sequentially within a task.
3.4 | MAY | Two tasks in the same session MAY run concurrently if the server supports it.
3.4 | MUST | The server MUST validate every step's tool name and argument schema before returning.
3.4 | is | If any step fails validation, the entire submission is rejected with RPC_INVALID_PARAMS and no step is
    executed.
3.4 | MUST | The server MUST reject any step whose tool's risk_level exceeds the session's permitted maximum
    (default 2; configurable via constraints.max_risk_level only if the session is permitted to relax it).
3.5 | is | Task status is one of: QUEUED, RUNNING, SUCCESS, FAILED, CANCELLED.
3.5 | is | Step status uses the same enum (without QUEUED).
3.5 | MUST | A failed step MUST include an "error" string.
3.5 | is | The whole task fails fast unless abort_on_step_failure: false was set.
3.6 | is | Result: { "task_id": "...", "status": "CANCELLING" }
3.6 | is | Steps in progress are signaled; the task moves to CANCELLED only after the current step yields.
3.6 | MUST NOT | Servers MUST NOT force-kill a step that has begun a hardware transaction (for example, an in-flight
    I2C write) just because cancel arrived.

# 4 Capability namespaces
4 | is | Tool names are dot-separated.
4 | SHOULD | Vendors SHOULD prefix custom namespaces with their reverse-DNS, for example com.acme.modbus.read, to
    avoid collisions.

# 5 Lifecycle
5 | is | A session begins with session.open and ends with session.close or an idle timeout.
5 | MAY | While a session is active, an agent MAY submit any number of tasks.
5 | is | Each task progresses through: QUEUED -> RUNNING -> { SUCCESS | FAILED | CANCELLED }
5 | SHOULD | Idle sessions SHOULD be reaped after a server-defined time-to-live (default 300 seconds);
5 | MUST | reaping MUST run session.close semantics, including cancelling any in-flight tasks.
5 | MUST | A server MUST reject any post-close request that uses the closed session identifier with
    RPC_SESSION_INVALID.

# 6 Error model
6 | is | HACP reuses the JSON-RPC 2.0 standard codes:
6 | is | Plus HACP-specific codes (range -32099 to -32000):
6 | MAY | Implementations MAY add codes in -32099 to -32005.
6 | MUST NOT | They MUST NOT re-use the codes above with different meaning.
6 | MAY | The optional error.data field MAY carry a structured detail object:

# 7 Audit semantics
7 | MUST | Every accepted task.submit, every step start, every step finish, and every session.open and session.close
    MUST generate an audit event.
7 | SHOULD | Audit logs SHOULD be append-only and rotation-friendly (newline-delimited JSON).
7 | MAY | Implementations MAY chain consecutive records cryptographically (for example, by including the SHA-256
    hash of the previous record in the next record) to provide tamper evidence.

# 8 Streaming extension
8 | is | The polling pattern (task.submit followed by repeated task.get) is sufficient but verbose.
8 | MAY | A server MAY advertise the CAP_STREAMING_TASK_EVENTS capability in session.open.
8 | MAY | If present, clients MAY call:
8 | is | The server then sends one or more notifications (JSON-RPC objects with no id):
8 | is | Phases: start, progress, finish, task_finish.
8 | is | The subscription ends implicitly when the task reaches a terminal status.

# 9 Versioning
9 | is | The protocol uses Semantic Versioning [SEMVER] as MAJOR.MINOR.PATCH:
9 | MAY | Servers MAY support multiple majors side by side via protocol_version in session.open.
9 | MUST | Servers MUST advertise their highest supported version in the session.open result.

# 10 Transport bindings
10.1 | is | Default path: implementation-defined; the reference implementation uses /run/hearth/hearth.sock when
    started as a system service or /tmp/hearth/hearth.sock for unprivileged use.
10.1 | is | Permissions: 0660 owned by the server's user, with a dedicated group. Adding a user to that group is the
    authentication act.
10.1 | is | Framing: line-delimited JSON.
10.2 | MAY | A small adapter MAY present a HACP server as an MCP server [MCP].
10.3 | MAY | For multi-host deployments, HACP MAY be served over TCP wrapped in mutual TLS.

# 12 Security considerations
12 | MUST | A conformant server MUST: Allowlist tools at startup.
12 | MUST | The set of registered tools is fixed per process; agents cannot install new tools at runtime over HACP.
12 | MUST | A conformant server MUST: Path-guard every filesystem operation.
12 | MUST | file.* and any tool that accepts a path MUST consult a configured read/write allowlist; reject with
    RPC_PERMISSION_DENIED on miss.
12 | MUST | A conformant server MUST: Enforce per-tool risk caps.
12 | MUST NOT | A session MUST NOT execute a tool whose risk_level exceeds the session's configured maximum.
12 | MUST | A conformant server MUST: Audit every accepted task (Section 7).
12 | MUST | A conformant server MUST: Bound resource use.
12 | MUST | Server MUST reject task.submit when internal queues are full.
12 | SHOULD | A conformant server SHOULD: Run as an unprivileged user, joining only the groups required for the
    buses it exposes.
12 | SHOULD | A conformant server SHOULD: Apply rate limits per (session_id, tool) pair.
12 | SHOULD | A conformant server SHOULD: Apply per-tool timeouts.
12 | SHOULD | A conformant server SHOULD: Drop privileges and apply syscall filtering before serving.
12 | MUST NOT | Servers MUST NOT expose a proc.exec-style escape hatch in the default tool set.
12 | MUST | Operators that need shell access MUST opt in explicitly and MUST flag such tools as risk_level: 3.
12 | MUST | Operators deploying HACP over network transports MUST apply mutual TLS or an equivalent authentication
    mechanism, as the JSON-RPC envelope itself carries no confidentiality or integrity protection.
12 | is | The default Unix Domain Socket transport relies on filesystem permissions for authentication.
12 | SHOULD | Operators SHOULD store audit logs on append-only media or use cryptographic chaining (Section 7) to
    detect tampering after the fact.
12 | is | A malicious or compromised agent that gains a HACP session is limited by the configured tool allowlist, risk
    cap, and path guard.

# 13 Privacy considerations
13 | is | The audit log records the full sequence of operations performed on behalf of an agent, including a hash of
    arguments.
13 | SHOULD | Operators SHOULD treat audit logs as sensitive: they may incidentally correlate hardware events with
    user activity (for example, motion sensor reads taken at specific times).
13 | is | Standard log retention, access control, and minimization practices apply.
13 | is | HACP itself does not transmit personally identifiable information as part of the protocol envelope.
13 | MUST | Implementations that expose tools returning personal data (for example, a microphone capture tool) MUST
    classify those tools at an appropriate risk_level and SHOULD require explicit operator opt-in.
13 | SHOULD | Implementations that expose tools returning personal data (for example, a microphone capture tool)
    MUST classify those tools at an appropriate risk_level and SHOULD require explicit operator opt-in.
"""
)
"""In the order of the draft. Section 1.1's sentence about the key words themselves asks nothing of anybody."""

DESIGN = read(
    """
design 8: notification | decided | missing `id` or `id: null`: executed, never answered (parse and invalid-request
    errors are still answered, with `id: null`)
design 8: batch | decided | array in, one array line out; empty → -32600; more than `max_batch` (64) → -32600
design 8: framing | decided | LF; CRLF, blank lines and surrounding white space accepted; one reply is one line
design 8: too long a line | decided | more than `max_document_bytes` (1 MiB): error -32600, reason in `data`, then
    the connection closes
design 8: values in one document | decided | at most 20,000 (`max_values`); more → -32600. No document may hold the
    event loop for more than 20 ms
design 8: WebSocket | decided | a text message is one document; two in one, white space alone, a binary message:
    -32700, the connection goes on; more than `max_document_bytes`, in however many fragments: closed with 1009
design 8: what is not JSON | decided | invalid UTF-8, NaN, numbers beyond a double, lone surrogates, nesting past
    the limit: -32700, the connection goes on; duplicate member names → -32600
design 8: id | decided | string or integer, else -32600; reuse while outstanding → -32600
design 8: params | decided | object; an array or scalar → -32602; unknown fields ignored at every level, tool args
    included, and named in the answer; our own clients refuse them
design 8: submit checks, in order | decided | session → shape (-32602) → tool exists (-32002) → allowed (-32003) →
    schema (-32602, with `step_index`, `tool`, JSON pointer, reason) → risk (-32003) → paths (-32003) → rate
    (-32006, `retry_after_ms`) → capacity (-32005)
design 8: limits | decided | steps 256 per task; 64 live tasks per session; 64 sessions per principal; 1,024
    connections; 256 outstanding requests per connection; bus queue 128; all in `[limits]`
design 8: step list in task.get | decided | steps that have started; once the task is terminal, the rest too, as
    CANCELLED
design 8: latency_ms | decided | a number of microsecond resolution
design 8: history | decided | 256 terminal tasks per session, then -32001
design 8: cancel of a terminal task | decided | its status, no error
design 8: failed steps with abort_on_step_failure: false | decided | all steps run; the task is FAILED if any failed
design 8: step results | decided | a failed step has `error` (string), `error_code` and `error_data`
design 8: task.events.subscribe | decided | answers first, then replays from the start (or `from_seq`), then live;
    each event has `seq`; `task_finish` carries the status and no `step_index`; without `task_id` all tasks of the
    session; `task.events.unsubscribe` exists; `task.submit` takes `subscribe: true`
design 8: back-pressure | decided | `start`, `finish` and `task_finish` are never dropped; `progress` coalesces to
    the newest
design 8: idle TTL | decided | 300 s without a request naming the session and without a live subscription; a running
    task alone does not keep a session
design 8: session.close | decided | answers when its tasks have yielded, at the latest after 2 s, then with
    `"yielding": n`
design 8: versions | decided | we speak 0.1.0; a higher major from the client → -32008 with `supported`; malformed
    semver → -32602
design 8: ids | decided | ULIDs from a CSPRNG
design 8: max_risk_level | decided | lower always; higher only up to the policy's `max_risk_ceiling`, else -32003
design 8: added codes | decided | -32005 QUEUE_FULL, -32006 RATE_LIMITED, -32007 SHUTTING_DOWN, -32008
    UNSUPPORTED_VERSION, -32009 DEVICE_ERROR, -32010 TIMED_OUT, -32011 AUDIT_UNAVAILABLE, -32012 HALTED, -32013
    LIMIT_VIOLATED, -32014 INTERLOCK_OPEN, -32015 EFFECT_NOT_SEEN, -32016 APPROVAL_REQUIRED, -32017 PLAN_STALE
design 8: idempotency_key | decided | kept per principal for 7 days, over sessions and restarts, on the disk before
    the acknowledgement; a repeat returns the first task and runs nothing; other content → -32602 with `task_id`;
    more than 50,000 keys → -32005
design 8: expect of a step | decided | a read in the same lease of the bus that must show the effect within
    `within_ms`; otherwise the step fails with -32015 and `effect: "done"`; what cannot be looked for is refused at
    submit
design 8: limits of outputs | decided | checked before the driver on every path, and at submit where the args show
    it; otherwise -32013 with `limit`, `allowed`, `effect: "none"`, and `retry_after_ms` if waiting helps; bringing
    an output to its safe state is always permitted
design 8: interlocks | decided | an output is driven only while each required line and sensor was just read as
    required; otherwise -32014 with `requires`, `effect: "none"`; a failed or stale reading is open; an output whose
    interlock opens goes to its safe state
design 8: halt | decided | any principal of a policy entry may, and root and the daemon's own user, without a
    session; acknowledged within a second, with `latched: true` if the latch is on the disk by then; tasks with
    effects are cancelled and outputs go to their safe states; until a reset, also over restarts, every step of
    effective risk 1 or more → -32012; reads go on
design 8: halt.reset | decided | needs the right `reset_halt` (-32003), and the stop sequence ended and every output
    safe (-32012 with the cause); removes the holds that were there when it was asked for, of persons, the fleet and
    clear inputs; -32012 names those that remain; it starts nothing again
design 8: halt.status | decided | whether it is halted, since when, why, and the state of each halt input; who
    halted is shown to that principal and to those with a right
design 8: plan.prepare | decided | checked as `task.submit` checks, nothing touched but reads of effective risk 0;
    the answer shows each step before and after, and a SHA-256 over the RFC 8785 form of exactly what will run
design 8: plan.execute | decided | once, by its own principal, approved as the policy asks (-32016); expired,
    executed, of another principal, with another hash, or with a changed state → -32017; then nothing
    has moved
design 8: plan.list, plan.get, plan.approve, plan.reject | decided | for holders of the right that the plan needs; each
    principal once, with the hash of what it was shown; not the author's own where another must; one rejection ends
    the plan, but for that of an approver, which takes the approval back; on record before it counts
design 8: approval.grant, approval.list, approval.revoke | decided | a standing approval is one approval of its giver
    for calls within its bounds, as often and as long as it says; never after a halt, its revocation or the loss of its
    giver's right; each use on record
design 14: observe.state | decided | for holders of the right `observe`, else -32003: board, lines with value, owner
    and safe state, buses, sessions, tasks, approvals, halt; no payload of a task or plan
design 14: observe.subscribe | decided | one ordered stream of all of it, from `from_seq` of the same stream on, else
    behind a snapshot; what is no longer kept is replaced by a snapshot that says how many events it replaces
design 14: observe.audit | decided | records by range, at most 500 and 1 MiB an answer
design 14: audited arguments | decided | the args that a tool declares safe, in clear; with `arguments = "hash"` only
    their hash
design 14: reload | decided | policy, tokens and certificates are read again; a session keeps what its entry permits
    from the next request on; one whose principal has no entry any more is closed; a fault changes nothing
design 14: task.cancel | decided | with the right `admin` also of a task of another session; recorded
design 18: attest.quote | decided | a statement for a nonce: files, configuration, policy, tools, limits, head and
    root of the audit log, boot id, time; signed with the audit key; each question is on record before its answer
design 18: the TPM | decided | with a TPM, a quote of a register that was extended with the measurements; its
    qualifying data is the hash of the statement
design 8: capability flags | decided | what the session may really do, and nothing else
"""
)
"""The wire decisions that go beyond the draft."""

ALL = [*DRAFT, *DESIGN, *CARD, *HCP]
