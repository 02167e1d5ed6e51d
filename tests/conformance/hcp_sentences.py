"""What the four pages of HCP ask for (L1 to L4), sentence by sentence and row by row.

A copy, in the form of `sentences.py`, with "hcp L1 " and a heading of the page before each. Quotes of code are plain
text, a row of a table is its cells joined by " | ", and figures and examples of JSON are said in words. A test that
proves every row of a heading bears the heading alone: `@pytest.mark.spec("hcp L4 Constraints")`.
"""

from __future__ import annotations

from conformance.reading import read

HCP = read(
    """
# L1: Transport & Encoding Layer
hcp L1 Message Envelope | is | Every HCP message is wrapped in a standard envelope, carried as the AMQP message body:
hcp L1 Message Envelope | MUST | null only in the initial task_submit message. All subsequent messages MUST include a
    valid session ID
hcp L1 Envelope Fields | is | hcp_version | string | Yes | Protocol version. Format: MAJOR.MINOR
hcp L1 Envelope Fields | is | message_id | string (UUID v4) | Yes | Unique identifier for this message
hcp L1 Envelope Fields | is | timestamp | string (ISO 8601) | Yes | When the message was created, UTC
hcp L1 Envelope Fields | is | session_id | string (UUID v4) or null | Conditional | Session identifier.
hcp L1 Envelope Fields | is | type | string (enum) | Yes | Message type.
hcp L1 Envelope Fields | is | payload | object | Yes | Layer-specific content. Structure depends on type
hcp L1 Message Types | is | task_submit | Submit a new task | No (session created by callee)
hcp L1 Message Types | is | abort | Request task abortion | Yes
hcp L1 Message Types | is | task_accepted | Task passed safety check, session created
hcp L1 Message Types | is | task_rejected | Task failed safety check
hcp L1 Message Types | is | event | Session lifecycle event (progress, checkpoint, etc.)
hcp L1 Message Types | is | task_completed | Task finished successfully
hcp L1 Message Types | is | task_failed | Task terminated due to error
hcp L1 AMQP Message Properties Mapping | is | HCP envelope fields map to AMQP message properties for broker-level
    routing and deduplication: message_id, timestamp, correlation_id, content_type, content_encoding, delivery_mode,
    type
hcp L1 AMQP Topology | MUST | HCP defines a standard AMQP topology that all implementations MUST follow.
hcp L1 AMQP Topology | is | hcp.commands | direct | Yes | Carries command messages from callers to callees
hcp L1 AMQP Topology | is | hcp.events | topic | Yes | Carries event messages from callees to callers
hcp L1 AMQP Topology | is | hcp.cmd.{callee_id} | hcp.commands | {callee_id} | Yes | Command queue for a specific callee
    harness
hcp L1 AMQP Topology | is | hcp.evt.{caller_id} | hcp.events | {caller_id}.# | Yes | Event queue for a specific caller
    harness
hcp L1 AMQP Topology | is | The caller publishes to hcp.commands with routing key set to the target callee's ID.
hcp L1 AMQP Topology | is | The callee publishes to hcp.events with a routing key that includes the caller ID, session
    ID, and message type.
hcp L1 Delivery by AMQP | MUST | The caller MUST publish with delivery_mode: 2 (persistent) and the callee MUST use
    manual ACK (basic.ack).
hcp L1 Delivery by AMQP | MUST | The callee MUST publish with delivery_mode: 2 and the caller MUST use manual ACK.
hcp L1 Delivery Guarantees | is | Since all commands to a callee go to a single queue, ordering is preserved.
hcp L1 Delivery Guarantees | SHOULD | If the caller does not receive a task_accepted or task_rejected within a
    configurable timeout, it SHOULD republish the task_submit with the same message_id.
hcp L1 Delivery Guarantees | MUST | The callee MUST deduplicate on message_id.
hcp L1 Delivery Guarantees | is | Events published while the caller is disconnected are retained in the queue until the
    caller reconnects and consumes them.
hcp L1 Delivery Guarantees | is | Each event carries a unique message_id.
hcp L1 Delivery Guarantees | SHOULD | Consumers SHOULD deduplicate on message_id.
hcp L1 Delivery Guarantees | is | Events for a session are published sequentially by the callee.
hcp L1 Stream Continuity | is | A core requirement of HCP is that the event stream between callee and caller remains
    stable and lossless even when the caller crashes, restarts, or experiences network interruption.
hcp L1 Stream Continuity | is | In all cases, the event stream must resume from exactly where it left off — no lost
    events, no gaps, no duplicate processing.
hcp L1 Stream Continuity | is | The callee's execution is completely decoupled from the caller's connection state
hcp L1 Stream Continuity | is | the callee never blocks or pauses because of the caller.
hcp L1 Stream Continuity | is | Each session's sequence numbers are independent.
hcp L1 Consuming from AMQP | MUST | Callers MUST configure their event channel consumer as follows: no_ack false,
    prefetch_count 1–100, exclusive false
hcp L1 Consuming from AMQP | MUST | The caller MUST follow this ACK strategy:
hcp L1 Consuming from AMQP | MUST NOT | The caller MUST NOT acknowledge an event until it has fully processed it
    (persisted, rendered, forwarded, etc.).
hcp L1 Consuming from AMQP | SHOULD | Callers SHOULD handle redeliveries:
hcp L1 Consuming from AMQP | SHOULD | HCP implementations SHOULD configure heartbeats
hcp L1 Consuming from AMQP | SHOULD | Harnesses SHOULD implement connection retry with exponential backoff (e.g., 1s,
    2s, 4s, 8s... capped at 60s).
hcp L1 Consuming from AMQP | SHOULD | For high availability, the broker SHOULD be deployed with quorum queues
hcp L1 Encoding | MUST | All message bodies MUST be encoded as UTF-8 JSON.
hcp L1 Encoding | MUST | Binary data (files, images, large datasets) MUST be referenced by URI, not embedded inline.
hcp L1 Encoding | MUST | Timestamps MUST use ISO 8601 format in UTC (e.g., 2025-01-15T08:30:00.000Z).
hcp L1 Encoding | MUST | Durations MUST use ISO 8601 duration format (e.g., PT72H, PT2H15M).
hcp L1 Properties of AMQP Messages | MUST | The AMQP content_type property MUST be set to "application/json".
hcp L1 Properties of AMQP Messages | MUST | The AMQP content_encoding property MUST be set to "utf-8".
hcp L1 Queue Management | SHOULD | Callee command queues SHOULD persist as long as the callee harness is registered.
hcp L1 Queue Management | MAY | Caller event queues MAY use per-message TTL (x-message-ttl) to discard stale events.
hcp L1 Queue Management | SHOULD | Session-specific event queues (if used) SHOULD be auto-deleted when the session
    reaches a terminal state.
hcp L1 Queue Management | SHOULD | Implementations SHOULD configure x-max-length or x-max-length-bytes on event queues
    to prevent unbounded growth.
hcp L1 Queue Management | SHOULD | When limits are reached, the oldest messages SHOULD be discarded (overflow:
    drop-head).
hcp L1 Broker Connections | SHOULD | All HCP exchanges and queues SHOULD be created within a dedicated AMQP virtual host
    (e.g., /hcp) to isolate HCP traffic from other applications sharing the same broker.
hcp L1 Broker Connections | is | Harnesses authenticate to the AMQP broker using standard AMQP SASL mechanisms.
hcp L1 Broker Connections | SHOULD | Access control (which harness can publish/consume which queues) SHOULD be
    configured at the broker level via AMQP permissions.
hcp L1 Broker Connections | SHOULD | All AMQP connections SHOULD use TLS (amqps://).
hcp L1 Broker Connections | SHOULD | Unencrypted connections (amqp://) SHOULD only be used in trusted network
    environments (e.g., localhost development).
hcp L1 Broker Connections | is | When a harness starts: connect to the AMQP broker, declare the exchanges, declare and
    bind its queue, start consuming.
hcp L1 Authentication | SHOULD | Each harness SHOULD have a unique set of credentials.
hcp L1 Authentication | is | Application-level identity (caller_id) is validated by L3.

# L2: Session & Lifecycle Layer
hcp L2 Session | is | It is created when a task passes L3 safety validation and destroyed when the task reaches a
    terminal state.
hcp L2 Session Properties | is | session_id | string (UUID v4) | Unique session identifier, generated by the callee
hcp L2 Session Properties | is | state | enum | Current lifecycle state
hcp L2 Session Properties | is | created_at | timestamp | When the session was created
hcp L2 Session Properties | is | updated_at | timestamp | Last state transition time
hcp L2 Session Properties | is | session_token | string | L3-issued token authorizing this session
hcp L2 Session Properties | is | risk_level | enum (R1–R5) | Risk level assessed by L3
hcp L2 Session Properties | is | metadata | object | Caller-provided and callee-assigned metadata
hcp L2 State Definitions | is | PENDING | Task received, awaiting L3 safety check | task_submit received
hcp L2 State Definitions | is | REJECTED | Task failed L3 safety check (terminal) | L3 rejects task
hcp L2 State Definitions | is | RUNNING | Task is actively being executed by the callee harness | L3 approves task
hcp L2 State Definitions | is | PAUSED | Execution temporarily suspended, session preserved | Callee decision or
    checkpoint
hcp L2 State Definitions | is | ABORTING | Abort requested, callee is cleaning up | Caller sends abort
hcp L2 State Definitions | is | ABORTED | Execution aborted, cleanup complete (terminal) | Callee finishes abort cleanup
hcp L2 State Definitions | is | COMPLETED | Task finished successfully (terminal) | Callee reports success
hcp L2 State Definitions | is | FAILED | Task terminated due to unrecoverable error (terminal) | Callee reports failure
hcp L2 Valid State Transitions | is | PENDING | RUNNING | L3 safety check passed
hcp L2 Valid State Transitions | is | PENDING | REJECTED | L3 safety check failed
hcp L2 Valid State Transitions | is | RUNNING | PAUSED | Callee pauses execution
hcp L2 Valid State Transitions | is | RUNNING | ABORTING | Caller sends abort
hcp L2 Valid State Transitions | is | RUNNING | COMPLETED | Task finishes successfully
hcp L2 Valid State Transitions | is | RUNNING | FAILED | Unrecoverable error
hcp L2 Valid State Transitions | is | PAUSED | RUNNING | Callee resumes execution
hcp L2 Valid State Transitions | is | PAUSED | ABORTING | Caller sends abort while paused
hcp L2 Valid State Transitions | is | ABORTING | ABORTED | Callee finishes cleanup
hcp L2 Event Envelope | is | event_type | string (enum) | Type of event
hcp L2 Event Envelope | is | sequence | integer | Monotonically increasing sequence number within the session
hcp L2 Event Envelope | is | data | object | Event-type-specific content
hcp L2 Standard Event Types | is | session_created | Session has been created and execution is starting | state,
    risk_level, session_token
hcp L2 Standard Event Types | is | state_changed | Session state has transitioned | from_state, to_state, reason
hcp L2 Standard Event Types | is | progress | Execution progress update | stage (string), percent (number, optional),
    message (string)
hcp L2 Standard Event Types | is | intermediate_result | Partial or interim result available | result_type, data,
    is_partial
hcp L2 Standard Event Types | is | log | Execution log entry | level (info/warn/error), message, details
hcp L2 Standard Event Types | is | warning | Non-fatal warning | code, message, details
hcp L2 Standard Event Types | is | error | Error occurred but execution continues | code, message, recoverable
hcp L2 Standard Event Types | is | checkpoint_created | A checkpoint was saved | checkpoint_id, description, resumable
hcp L2 Standard Event Types | is | session_closed | Session has reached a terminal state | final_state, reason
hcp L2 Event Ordering | MUST | Events MUST be emitted with strictly increasing sequence numbers within a session.
hcp L2 Event Ordering | MUST | Consumers MUST process events in sequence order.
hcp L2 Event Ordering | SHOULD | If events arrive out of order (due to transport characteristics), the consumer SHOULD
    buffer and reorder.
hcp L2 Event Ordering | MUST | The caller MUST maintain a last_processed_sequence value for each active session.
hcp L2 Event Ordering | is | the caller checks event.sequence <= last_processed_sequence — if true, the event has
    already been processed and is skipped
hcp L2 Event Ordering | SHOULD | On gap detection, the caller SHOULD log a warning and continue processing (the missing
    event may arrive via redelivery).
hcp L2 Checkpoint & Recovery | is | When a checkpoint is created, the callee emits a checkpoint_created event.
hcp L2 Checkpoint & Recovery | MAY | If a callee harness fails and restarts, it MAY resume from the latest checkpoint.
hcp L2 Checkpoint & Recovery | SHOULD | The callee SHOULD emit a state_changed event with reason:
    "recovered_from_checkpoint" upon recovery.
hcp L2 Checkpoint & Recovery | is | Execution continues from the checkpoint, and new events are appended to the same
    session.
hcp L2 Session Timeout | SHOULD | The callee SHOULD enforce a maximum session duration, derived from the task's
    max_duration constraint (L4) or a system default.
hcp L2 Session Timeout | is | If execution exceeds the timeout, the callee transitions to FAILED with reason "timeout".
hcp L2 Session Timeout | MAY | Idle sessions (no events emitted for a configurable period) MAY be cleaned up by the
    callee.
hcp L2 Abort Protocol | is | The session transitions to ABORTING.
hcp L2 Abort Protocol | is | The callee begins cleanup: stops LLM calls, terminates running tools, releases resources.
hcp L2 Abort Protocol | SHOULD | Cleanup SHOULD be bounded by a callee-defined abort timeout.
hcp L2 Abort Protocol | is | Upon completion, the session transitions to ABORTED.
hcp L2 Abort Protocol | is | The callee emits session_closed with final_state: "ABORTED".
hcp L2 Abort Protocol | MUST | The callee MUST make a best-effort attempt at cleanup but is not required to guarantee
    resource release within any specific timeframe.
hcp L2 Abort Protocol | SHOULD | The caller SHOULD treat ABORTING as a transient state that will resolve to ABORTED.

# L3: Safety & Contract Layer
hcp L3 Purpose | MUST | Every task submission MUST pass through L3 before execution begins.
hcp L3 Capability Declaration | is | A callee harness publishes a Capability Declaration that describes what it can do,
    what it requires, and what risks it may involve.
hcp L3 Capability Declaration Fields | is | name | string | Yes | Unique identifier for this capability
hcp L3 Capability Declaration Fields | is | version | string (semver) | Yes | Capability version
hcp L3 Capability Declaration Fields | is | description | string | Yes | Human and LLM readable description of what this
    capability does
hcp L3 Capability Declaration Fields | is | input_schema | JSON Schema | Yes | Schema for valid task inputs
hcp L3 Capability Declaration Fields | is | output_schema | JSON Schema | Yes | Schema for expected task outputs
hcp L3 Capability Declaration Fields | is | safety | object | Yes | Safety characteristics (see below)
hcp L3 Capability Declaration Fields | is | constraints | object | No | Operational constraints
hcp L3 Safety Declaration Fields | is | risk_ceiling | enum (R1–R5) | Yes | Maximum risk level this capability may
    involve
hcp L3 Safety Declaration Fields | is | requires_human_approval | boolean | Yes | Whether tasks require human sign-off
    before execution
hcp L3 Safety Declaration Fields | is | involves_physical_resources | boolean | Yes | Whether the capability controls
    physical devices
hcp L3 Safety Declaration Fields | is | resource_types | string[] | No | Types of physical or virtual resources involved
hcp L3 Safety Declaration Fields | is | hazard_categories | string[] | No | Categories of potential hazards
hcp L3 Risk Classification | is | R1 | Minimal | Read-only operations, no side effects
hcp L3 Risk Classification | is | R2 | Low | Reversible side effects in sandboxed environment
hcp L3 Risk Classification | is | R3 | Moderate | Irreversible side effects in controlled environment
hcp L3 Risk Classification | is | R4 | High | Operations involving physical resources or sensitive systems
hcp L3 Risk Classification | is | R5 | Critical | Operations with safety-of-life implications or hazardous materials
hcp L3 Risk Assessment Process | is | Static risk floor: The capability's declared risk_ceiling sets the minimum
    possible risk.
hcp L3 Risk Assessment Process | is | Input-driven escalation: Specific input parameters may elevate the risk level.
hcp L3 Risk Assessment Process | is | Contextual factors: Time of day (unattended operation), concurrent tasks on shared
    equipment, or resource availability may further affect risk assessment.
hcp L3 Risk Assessment Process | is | The assessed risk level is included in the task_accepted response and carried in
    the session token.
hcp L3 Data Classification | is | T1 | Public | Non-sensitive data | No restrictions
hcp L3 Data Classification | is | T2 | Internal | Internal data, not for public release | Access logging
hcp L3 Data Classification | is | T3 | Confidential | Sensitive data with restricted access | Encryption in transit and
    at rest
hcp L3 Data Classification | is | T4 | Restricted | Highly sensitive, regulatory implications | Encryption, audit trail,
    access approval
hcp L3 Data Classification | is | Data classification is declared by the caller in the task submission and validated by
    the callee's L3 layer.
hcp L3 Safety Envelope | is | For capabilities involving physical resources (R4, R5), L3 defines a safety envelope —
    hard boundaries that execution must never exceed.
hcp L3 Safety Envelope | is | Defined by the callee based on equipment specifications and safety policies
hcp L3 Safety Envelope | is | Enforced locally by the callee during L1 tool execution
hcp L3 Safety Envelope | is | Not modifiable by the caller — the caller cannot relax safety limits
hcp L3 Permission Audit | is | Caller identity: The caller harness is authenticated via AMQP broker-level credentials
    (SASL).
hcp L3 Permission Audit | is | Capability access: The caller has permission to invoke the requested capability.
hcp L3 Permission Audit | is | Input validation: The task inputs conform to the capability's input_schema.
hcp L3 Permission Audit | is | Safety compliance: The task parameters fall within acceptable risk thresholds for the
    caller's permission level.
hcp L3 Session Token | is | Authorizes the execution session
hcp L3 Session Token | is | Encodes the approved risk level and constraints
hcp L3 Session Token | is | Is carried in all subsequent messages for the session (via session_token in L2 session
    metadata)
hcp L3 Session Token | is | Is validated by the callee's L1/L2 layers on each operation to ensure execution stays within
    approved scope
hcp L3 Session Token Properties | is | token | Opaque string, implementation-specific (e.g., JWT, signed hash)
hcp L3 Session Token Properties | is | issued_at | When the token was issued
hcp L3 Session Token Properties | MUST | expires_at | When the token expires (MUST be ≤ task max_duration)
hcp L3 Session Token Properties | is | approved_risk_level | The risk level approved for this session
hcp L3 Session Token Properties | is | approved_data_classification | Maximum data sensitivity level for this session
hcp L3 Session Token Properties | is | constraints | Approved safety envelope and operational constraints
hcp L3 Token Format | is | It is an opaque string from the caller's perspective
hcp L3 Token Format | is | It is included in the task_accepted response
hcp L3 Token Format | is | It is verifiable by the callee's L2 and L1 layers
hcp L3 Approval Flow | is | Caller authenticated? No: TaskRejected (unauthorized)
hcp L3 Approval Flow | is | Capability access OK? No: TaskRejected (forbidden)
hcp L3 Approval Flow | is | Input schema valid? No: TaskRejected (invalid_input)
hcp L3 Approval Flow | is | Check caller's allowed risk threshold. Exceeds: TaskRejected (risk_too_high)
hcp L3 Approval Flow | is | requires_human_approval and risk_level >= R3? Yes: Queue for human review (async approval
    flow)
hcp L3 Approval Flow | is | No / Approved: Issue SessionToken, Return TaskAccepted
hcp L3 TaskAccepted Response | is | session_token, risk_level, data_classification, safety_envelope,
    constraints.max_duration, constraints.abort_timeout
hcp L3 TaskRejected Response | is | reason_code, reason_message, assessed_risk_level, suggestion
hcp L3 TaskRejected Response | OPTIONAL | The suggestion field is optional but encouraged — it helps the caller (or the
    caller's LLM) understand how to adjust the task to make it acceptable.

# L4: Task Layer
hcp L4 TaskSubmit Fields | is | capability | string | Yes | Name of the capability to invoke (matches callee's
    Capability Declaration)
hcp L4 TaskSubmit Fields | is | capability_version | string | No | Semver range for acceptable capability versions
    (e.g., "1.x", ">=2.0.0")
hcp L4 TaskSubmit Fields | is | caller_id | string | Yes | Identifier of the calling harness
hcp L4 TaskSubmit Fields | is | intent | string | Yes | Natural language description of what the caller wants to
    achieve.
hcp L4 TaskSubmit Fields | is | inputs | object | Yes | Structured inputs conforming to the capability's input_schema
hcp L4 TaskSubmit Fields | is | constraints | object | No | Execution constraints (see below)
hcp L4 TaskSubmit Fields | is | expected_output | object | No | Description of desired output format (see below)
hcp L4 TaskSubmit Fields | is | context | object | No | Additional context to help the callee understand the task
hcp L4 Constraints | is | max_duration | string (ISO 8601 duration) | Maximum allowed execution time
hcp L4 Constraints | is | confidence_threshold | number (0–1) | Minimum acceptable confidence for results
hcp L4 Constraints | is | data_classification | enum (T1–T4) | Sensitivity level of the data involved
hcp L4 Constraints | is | priority | enum (low/normal/high/urgent) | Relative priority hint
hcp L4 Expected Output | is | format | string | Named format identifier
hcp L4 Expected Output | MUST | required_fields | string[] | Fields that MUST be present in the result
hcp L4 Expected Output | is | schema | JSON Schema | Full schema for the expected output structure
hcp L4 Context | is | It is not validated against any schema.
hcp L4 Context | is | purpose | string | Why this task is being requested
hcp L4 Context | is | references | string[] | DOIs, URLs, or identifiers for reference materials
hcp L4 Context | is | notes | string | Free-form notes for the callee's LLM
hcp L4 Task Completion | is | When the callee finishes the task successfully, it sends a task_completed message.
hcp L4 TaskCompleted Fields | is | outputs | object | Yes | Structured result data, conforming to expected_output.schema
    if specified
hcp L4 TaskCompleted Fields | is | artifacts | array | No | List of generated artifacts (files, datasets, etc.)
hcp L4 TaskCompleted Fields | is | execution_summary | object | No | Summary of execution metrics and notable events
hcp L4 Artifacts | is | Artifacts are referenced by URI, not embedded.
hcp L4 Artifacts | is | name | string | Human-readable artifact name
hcp L4 Artifacts | is | type | string (MIME) | Content type
hcp L4 Artifacts | is | uri | string | URI for retrieving the artifact
hcp L4 Artifacts | is | size_bytes | integer | Artifact size
hcp L4 Artifacts | is | checksum | string | Optional integrity hash (e.g., "sha256:abc...")
hcp L4 Task Failure | is | When a task fails due to an unrecoverable error, the callee sends a task_failed message.
hcp L4 TaskFailed Schema | is | error_code, error_message, error_details (phase, step, last_checkpoint, recoverable),
    partial_outputs, artifacts, execution_summary
hcp L4 Standard Error Codes | is | execution_error | Error during task execution
hcp L4 Standard Error Codes | is | timeout | Task exceeded max_duration
hcp L4 Standard Error Codes | is | safety_violation | Execution would violate safety envelope
hcp L4 Standard Error Codes | is | resource_unavailable | Required resource is not available
hcp L4 Standard Error Codes | is | internal_error | Callee harness internal failure
hcp L4 Standard Error Codes | is | input_error | Input data is malformed or insufficient (discovered during execution)
hcp L4 Partial Results | SHOULD | When a task fails after producing some results, the callee SHOULD include:
hcp L4 Partial Results | is | partial_outputs: Whatever structured results were produced before failure
hcp L4 Partial Results | is | artifacts: Any artifacts generated before failure
hcp L4 Partial Results | is | error_details.last_checkpoint: The last checkpoint ID, enabling the caller to potentially
    resubmit with recovery context
"""
)
"""The sentences and rows of the four pages."""
