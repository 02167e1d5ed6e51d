/**
 * A client of HACP, the Hardware Agent Capability Protocol, over WebSocket: for browsers, Node, and any other runtime that
 * has EventTarget and a WebSocket.
 *
 * The client owns one link (a WebSocket connection) to a daemon. When the link drops, the client reconnects after
 * growing pauses and resumes every subscription after the last event that it saw, so that no event is lost and none is
 * delivered twice. It needs no `eval`, no framework and no other file.
 *
 *     import { HacpClient } from "hacp-client"; // or "./hacp.js", where you serve the file yourself
 *
 *     const client = new HacpClient("ws://127.0.0.1:7118", { token });
 *     await client.connect();
 *     const session = await client.openSession({ clientName: "my page" });
 *     session.addEventListener("event", ({ detail }) => console.log(detail.seq, detail.phase, detail.status));
 *     session.addEventListener("gone", () => console.log("open another one"));
 *     const steps = [{ tool: "gpio.set", args: { line: "LED", value: 1 } }];
 *     const task = await session.submit({ intent: "light", steps });
 *     console.log(await task.wait());
 *
 * Methods, results and errors are those of docs/reference/methods.md and docs/reference/errors.md, by the same names.
 *
 * @module
 */
export type State = "connecting" | "open" | "waiting" | "closed";
export type StateDetail = {
    state: State;
    /**
     * How many attempts have failed in a row.
     */
    attempt: number;
    /**
     * Of "waiting": until the next attempt.
     */
    retryInMs?: number;
    /**
     * Of "waiting" and "closed": why, for a person.
     */
    reason?: string;
    /**
     * Of "waiting": true if a link was ever open. If not, the address, the token or the
     * page's origin may be wrong: a browser does not tell a page which.
     */
    wasOpen?: boolean;
};
export type TaskEvent = {
    task_id: string;
    /**
     * Counts the task's events from 1; a gap is progress that was coalesced.
     */
    seq: number;
    phase: "start" | "progress" | "finish" | "task_finish";
    /**
     * RFC 3339, UTC.
     */
    ts: string;
    step_index?: number;
    tool?: string;
    status?: string;
    /**
     * Of "progress": what the tool reports.
     */
    data?: Record<string, any>;
    /**
     * Of "progress": whether a step could be undone.
     */
    rolled_back?: boolean;
    /**
     * Of "finish".
     */
    result?: Record<string, any>;
    /**
     * Of "finish".
     */
    latency_ms?: number;
    /**
     * Of "task_finish".
     */
    reason?: string;
    error?: string;
    error_code?: number;
    error_data?: Record<string, unknown>;
};
export type Step = {
    tool: string;
    args?: Record<string, unknown>;
    /**
     * The effect that must be seen: see docs/reference/methods.md.
     */
    expect?: Record<string, unknown>;
};
export type TaskRequest = {
    /**
     * What the task is for, for people and for the audit log.
     */
    intent: string;
    steps: Step[];
    constraints?: Record<string, unknown>;
    /**
     * One is made unless given.
     */
    idempotency_key?: string;
};
export type SignalValue = boolean | number | string | null;
export type SignalReading = {
    name: string;
    /**
     * The id of its bus; `BUS:NAME` is its full name.
     */
    bus: string;
    value: SignalValue;
    unit?: string | null;
    /**
     * When it was read: RFC 3339, UTC.
     */
    at: string | null;
    /**
     * "good": as measured. "stale": as known from before.
     */
    quality: "good" | "stale" | "none" | "failed";
    /**
     * Why there is no value.
     */
    why?: string;
};
export type SignalRow = SignalReading & {
    kind: string;
    access: "r" | "w" | "rw" | "";
    safe: SignalValue;
    limit: Record<string, any>;
    interlocks: Record<string, any>[];
    owner: string | null;
    reserved: string | null;
    left: boolean;
};
export type SignalChange = {
    value: SignalValue;
    /**
     * When it was read, where the signal's kind says it.
     */
    at?: string;
};
export type HaltStatus = {
    halted: boolean;
    /**
     * The number of the last halt: nothing that was asked for before it acts any more.
     */
    generation: number;
    /**
     * RFC 3339, UTC.
     */
    since?: string;
    reason?: string;
    /**
     * The principal or the input behind it; left out if this session may not know.
     */
    by?: string;
    /**
     * Whether the halt outlives the daemon; if not, `problem` says why.
     */
    latched?: boolean;
    problem?: string;
    /**
     * Whether the stop sequence still runs.
     */
    stopping?: boolean;
    /**
     * The outputs that are not in their safe state yet.
     */
    unsafe?: {
        bus: string;
        outputs: unknown[];
    }[];
    /**
     * Outputs that were driven and have no safe state.
     */
    left?: {
        bus: string;
        outputs: unknown[];
    }[];
    /**
     * Why it is halted, one for each principal: `source`, `by`, `reason`,
     * `generation` and more. The halt ends with the last.
     */
    holds?: Record<string, unknown>[];
    /**
     * Halt input to "clear", or why it is not: a reset needs all of them clear.
     */
    inputs?: Record<string, string>;
};
export type PlanStep = {
    tool: string;
    args: Record<string, unknown>;
    expect?: Record<string, unknown>;
    /**
     * As it was when the plan was prepared, or as an earlier step leaves it.
     */
    before: Record<string, unknown> | null;
    /**
     * As it is after the step.
     */
    after: Record<string, unknown> | null;
    /**
     * As it is for a time, of a step that brings it back.
     */
    during?: {
        for_ms: number;
        members: Record<string, unknown>;
    };
    /**
     * The call that means this step, where that was one of another tool.
     */
    asked?: {
        tool: string;
        args: Record<string, unknown>;
    };
};
export type PlanSummary = {
    plan_id: string;
    hash: string;
    effective_risk: number;
    /**
     * Of a summary, its beginning.
     */
    intent: string;
    step_count: number;
    /**
     * The approval that the policy asks for.
     */
    needs: {
        right: string;
        persons: number;
        other: boolean;
    } | null;
    approved_by: string[];
    state: "waiting" | "ready" | "executed" | "rejected";
    /**
     * Whether the approval of this principal would count now.
     */
    may_approve: boolean;
    principal: string;
    own: boolean;
    /**
     * RFC 3339, UTC.
     */
    created_at: string;
    expires_at: string;
    /**
     * The task that it became.
     */
    task_id?: string;
    rejected_by?: string;
    reason?: string;
};
export type Plan = PlanSummary & {
    constraints: Record<string, unknown>;
    steps: PlanStep[];
    shown: string[];
};
export type PlanList = {
    /**
     * The number of changes so far, for the next `plans({ afterSeq: seq, waitMs })`.
     */
    seq: number;
    plans: PlanSummary[];
    /**
     * How many are left out, because the answer would be too long.
     */
    more?: number;
};
export type ObserveEvent = {
    stream: string;
    seq: number;
    /**
     * RFC 3339, UTC.
     */
    ts: string;
    kind: "snapshot" | "records" | "readings" | "lines" | "signals" | "buses" | "halt" | "approvals" | "health";
    /**
     * Of "snapshot": how many events it replaces, or null if that is not known.
     */
    missed?: number | null;
    /**
     * Of "snapshot".
     */
    state?: Record<string, any>;
    /**
     * Of "records": audit records, with the time of each as `ts`.
     */
    records?: Record<string, any>[];
    /**
     * Of "readings": numbers in the results of steps.
     */
    readings?: Record<string, any>[];
};
export type ClientOptions = {
    /**
     * A bearer token; it is sent in the handshake, as a subprotocol, never in an address.
     */
    token?: string;
    /**
     * Before the first new attempt; doubled before each further one. 250.
     */
    firstPauseMs?: number;
    /**
     * 10 000.
     */
    longestPauseMs?: number;
    /**
     * The longest time that opening a link may take. 15 000.
     */
    openingMs?: number;
    /**
     * After so long without a message, while an answer or an event is awaited, the client asks
     * the server for a sign of life: a link that drops silently shows in no other way. 15 000.
     */
    quietMs?: number;
    /**
     * The longest time for that answer, before the link counts as lost, beyond the time that a
     * request is to wait (`waitMs`). 10 000.
     */
    answerMs?: number;
    /**
     * The class that makes links, for a runtime without one of its own, such as
     * Node before version 22: the `ws` package exports one. `globalThis.WebSocket`.
     */
    WebSocket?: typeof WebSocket;
};
/**
 * @typedef {"connecting" | "open" | "waiting" | "closed"} State
 *   "connecting": a link is being opened and its subscriptions resumed. "open": requests can be made. "waiting": the
 *   link was lost or refused; the next attempt follows after a pause. "closed": by `close()`, before `connect()`, or
 *   because the server does not speak HACP.
 *
 * @typedef {object} StateDetail The `detail` of a "state" event.
 * @property {State} state
 * @property {number} attempt How many attempts have failed in a row.
 * @property {number} [retryInMs] Of "waiting": until the next attempt.
 * @property {string} [reason] Of "waiting" and "closed": why, for a person.
 * @property {boolean} [wasOpen] Of "waiting": true if a link was ever open. If not, the address, the token or the
 *   page's origin may be wrong: a browser does not tell a page which.
 *
 * @typedef {object} TaskEvent A `task.event` notification's params, as the server sent them.
 * @property {string} task_id
 * @property {number} seq Counts the task's events from 1; a gap is progress that was coalesced.
 * @property {"start" | "progress" | "finish" | "task_finish"} phase
 * @property {string} ts RFC 3339, UTC.
 * @property {number} [step_index]
 * @property {string} [tool]
 * @property {string} [status]
 * @property {Record<string, any>} [data] Of "progress": what the tool reports.
 * @property {boolean} [rolled_back] Of "progress": whether a step could be undone.
 * @property {Record<string, any>} [result] Of "finish".
 * @property {number} [latency_ms] Of "finish".
 * @property {string} [reason] Of "task_finish".
 * @property {string} [error]
 * @property {number} [error_code]
 * @property {Record<string, unknown>} [error_data]
 *
 * @typedef {object} Step
 * @property {string} tool
 * @property {Record<string, unknown>} [args]
 * @property {Record<string, unknown>} [expect] The effect that must be seen: see docs/reference/methods.md.
 *
 * @typedef {object} TaskRequest The `task` of task.submit.
 * @property {string} intent What the task is for, for people and for the audit log.
 * @property {Step[]} steps
 * @property {Record<string, unknown>} [constraints]
 * @property {string} [idempotency_key] One is made unless given.
 *
 * @typedef {boolean | number | string | null} SignalValue In the signal's unit; null if there is none.
 *
 * @typedef {object} SignalReading
 * @property {string} name
 * @property {string} bus The id of its bus; `BUS:NAME` is its full name.
 * @property {SignalValue} value
 * @property {string | null} [unit]
 * @property {string | null} at When it was read: RFC 3339, UTC.
 * @property {"good" | "stale" | "none" | "failed"} quality "good": as measured. "stale": as known from before.
 * @property {string} [why] Why there is no value.
 *
 * @typedef {SignalReading & {kind: string, access: "r" | "w" | "rw" | "", safe: SignalValue, limit: Record<string, any>,
 *   interlocks: Record<string, any>[], owner: string | null, reserved: string | null, left: boolean}} SignalRow
 *   A row of signal.list (docs/reference/tools.md).
 *
 * @typedef {object} SignalChange
 * @property {SignalValue} value
 * @property {string} [at] When it was read, where the signal's kind says it.
 *
 * @typedef {object} HaltStatus The state of the halt. All but `halted` and `inputs` is left out while it is not halted.
 * @property {boolean} halted
 * @property {number} generation The number of the last halt: nothing that was asked for before it acts any more.
 * @property {string} [since] RFC 3339, UTC.
 * @property {string} [reason]
 * @property {string} [by] The principal or the input behind it; left out if this session may not know.
 * @property {boolean} [latched] Whether the halt outlives the daemon; if not, `problem` says why.
 * @property {string} [problem]
 * @property {boolean} [stopping] Whether the stop sequence still runs.
 * @property {{bus: string, outputs: unknown[]}[]} [unsafe] The outputs that are not in their safe state yet.
 * @property {{bus: string, outputs: unknown[]}[]} [left] Outputs that were driven and have no safe state.
 * @property {Record<string, unknown>[]} [holds] Why it is halted, one for each principal: `source`, `by`, `reason`,
 *   `generation` and more. The halt ends with the last.
 * @property {Record<string, string>} [inputs] Halt input to "clear", or why it is not: a reset needs all of them clear.
 *
 * @typedef {object} PlanStep A step of a plan, with what it changes; null for a step that does not say.
 * @property {string} tool
 * @property {Record<string, unknown>} args
 * @property {Record<string, unknown>} [expect]
 * @property {Record<string, unknown> | null} before As it was when the plan was prepared, or as an earlier step leaves it.
 * @property {Record<string, unknown> | null} after As it is after the step.
 * @property {{for_ms: number, members: Record<string, unknown>}} [during] As it is for a time, of a step that brings it back.
 * @property {{tool: string, args: Record<string, unknown>}} [asked] The call that means this step, where that was one of another tool.
 *
 * @typedef {object} PlanSummary A plan without its contents (docs/reference/methods.md#planlist).
 * @property {string} plan_id
 * @property {string} hash
 * @property {number} effective_risk
 * @property {string} intent Of a summary, its beginning.
 * @property {number} step_count
 * @property {{right: string, persons: number, other: boolean} | null} needs The approval that the policy asks for.
 * @property {string[]} approved_by
 * @property {"waiting" | "ready" | "executed" | "rejected"} state
 * @property {boolean} may_approve Whether the approval of this principal would count now.
 * @property {string} principal
 * @property {boolean} own
 * @property {string} created_at RFC 3339, UTC.
 * @property {string} expires_at
 * @property {string} [task_id] The task that it became.
 * @property {string} [rejected_by]
 * @property {string} [reason]
 *
 * @typedef {PlanSummary & {constraints: Record<string, unknown>, steps: PlanStep[], shown: string[]}} Plan A prepared task
 *   (docs/reference/methods.md#planprepare); `shown` has the rows that a person reads before deciding.
 *
 * @typedef {object} PlanList
 * @property {number} seq The number of changes so far, for the next `plans({ afterSeq: seq, waitMs })`.
 * @property {PlanSummary[]} plans
 * @property {number} [more] How many are left out, because the answer would be too long.
 *
 * @typedef {object} ObserveEvent The params of an `observe.event` notification (docs/reference/methods.md#observesubscribe).
 * @property {string} stream
 * @property {number} seq
 * @property {string} ts RFC 3339, UTC.
 * @property {"snapshot" | "records" | "readings" | "lines" | "signals" | "buses" | "halt" | "approvals" | "health"} kind
 * @property {number | null} [missed] Of "snapshot": how many events it replaces, or null if that is not known.
 * @property {Record<string, any>} [state] Of "snapshot".
 * @property {Record<string, any>[]} [records] Of "records": audit records, with the time of each as `ts`.
 * @property {Record<string, any>[]} [readings] Of "readings": numbers in the results of steps.
 *
 * @typedef {object} ClientOptions
 * @property {string} [token] A bearer token; it is sent in the handshake, as a subprotocol, never in an address.
 * @property {number} [firstPauseMs] Before the first new attempt; doubled before each further one. 250.
 * @property {number} [longestPauseMs] 10 000.
 * @property {number} [openingMs] The longest time that opening a link may take. 15 000.
 * @property {number} [quietMs] After so long without a message, while an answer or an event is awaited, the client asks
 *   the server for a sign of life: a link that drops silently shows in no other way. 15 000.
 * @property {number} [answerMs] The longest time for that answer, before the link counts as lost, beyond the time that a
 *   request is to wait (`waitMs`). 10 000.
 * @property {typeof WebSocket} [WebSocket] The class that makes links, for a runtime without one of its own, such as
 *   Node before version 22: the `ws` package exports one. `globalThis.WebSocket`.
 */
/** The symbols of the error codes (docs/reference/errors.md). */
export declare const SYMBOLS: Readonly<{
    [-32700]: "PARSE_ERROR";
    [-32600]: "INVALID_REQUEST";
    [-32601]: "METHOD_NOT_FOUND";
    [-32602]: "INVALID_PARAMS";
    [-32603]: "INTERNAL_ERROR";
    [-32000]: "RPC_SESSION_INVALID";
    [-32001]: "RPC_TASK_NOT_FOUND";
    [-32002]: "RPC_TOOL_NOT_FOUND";
    [-32003]: "RPC_PERMISSION_DENIED";
    [-32004]: "RPC_RESOURCE_BUSY";
    [-32005]: "QUEUE_FULL";
    [-32006]: "RATE_LIMITED";
    [-32007]: "SHUTTING_DOWN";
    [-32008]: "UNSUPPORTED_VERSION";
    [-32009]: "DEVICE_ERROR";
    [-32010]: "TIMED_OUT";
    [-32011]: "AUDIT_UNAVAILABLE";
    [-32012]: "HALTED";
    [-32013]: "LIMIT_VIOLATED";
    [-32014]: "INTERLOCK_OPEN";
    [-32015]: "EFFECT_NOT_SEEN";
    [-32016]: "APPROVAL_REQUIRED";
    [-32017]: "PLAN_STALE";
}>;
/** The server's refusal of a request. Decide by `code` and `data`, never by `message`. */
export declare class HacpError extends Error {
    /** The JSON-RPC error code. */
    code: number;
    /** Its symbol; "UNKNOWN" for a later release's code. @type {string} */
    symbol: string;
    data: Record<string, unknown>;
    /**
     * @param {number} code
     * @param {string} message
     * @param {Record<string, unknown>} [data]
     */
    constructor(code: number, message: string, data?: Record<string, unknown>);
}
/** There is no link, or it was lost before the answer came: the request may or may not have been carried out. */
export declare class LinkError extends Error {
    /** @param {string} message */
    constructor(message: string);
}
/**
 * An EventTarget that knows its events: a listener for a misspelt event is a type error, and `detail` has a type.
 *
 * @template {Record<string, unknown>} Events The type of `detail` by the event's name.
 */
declare class Emitter<Events extends Record<string, unknown>> extends EventTarget {
    /**
     * @template {keyof Events & string} K
     * @param {K} type
     * @param {((event: CustomEvent<Events[K]>) => void) | {handleEvent(event: CustomEvent<Events[K]>): void} | null} listener
     * @param {boolean | AddEventListenerOptions} [options]
     */
    addEventListener<K extends keyof Events & string>(type: K, listener: ((event: CustomEvent<Events[K]>) => void) | {
        handleEvent(event: CustomEvent<Events[K]>): void;
    } | null, options?: boolean | AddEventListenerOptions): void;
    /**
     * @template {keyof Events & string} K
     * @param {K} type
     * @param {((event: CustomEvent<Events[K]>) => void) | {handleEvent(event: CustomEvent<Events[K]>): void} | null} listener
     * @param {boolean | EventListenerOptions} [options]
     */
    removeEventListener<K extends keyof Events & string>(type: K, listener: ((event: CustomEvent<Events[K]>) => void) | {
        handleEvent(event: CustomEvent<Events[K]>): void;
    } | null, options?: boolean | EventListenerOptions): void;
}
/**
 * A connection to a daemon that reconnects when it drops.
 *
 * Events: "state" (`detail` is a {@link StateDetail}).
 *
 * @extends {Emitter<{state: StateDetail}>}
 */
export declare class HacpClient extends Emitter<{
    state: StateDetail;
}> {
    #private;
    /**
     * @param {string} url "ws://host:port" or "wss://host:port".
     * @param {ClientOptions} [options]
     * @throws {TypeError} The address or the token cannot be one, or there is no WebSocket; the message says why.
     */
    constructor(url: string, options?: ClientOptions);
    /** The daemon's address. */
    get url(): string;
    /** @returns {State} */
    get state(): State;
    /**
     * Open the link, and keep it open from now on.
     *
     * @returns {Promise<void>} Resolved when the link is open for the first time, after any number of attempts; rejected
     *   with a LinkError if the client is closed before.
     */
    connect(): Promise<void>;
    /** Resolved when requests can be made; rejected with a LinkError if the client is closed. @returns {Promise<void>} */
    whenOpen(): Promise<void>;
    /** Make the next attempt now instead of after the pause. */
    reconnectNow(): void;
    /** Close the link and stay closed. Sessions opened with "keep" go on until they have been idle for 300 s. */
    close(): void;
    /**
     * Make a request.
     *
     * @param {string} method
     * @param {Record<string, unknown>} [params]
     * @returns {Promise<Record<string, any>>} Its result.
     * @throws {HacpError} The server refused.
     * @throws {LinkError} There is no link, or it dropped before the answer came.
     */
    call(method: string, params?: Record<string, unknown>): Promise<Record<string, any>>;
    /**
     * Open a session (session.open). It outlives a dropped link, but not 300 s without a request and a subscription.
     *
     * @param {object} [options]
     * @param {string} [options.clientName] The name of your program, for the audit log.
     * @param {string} [options.clientVersion]
     * @param {"keep" | "close"} [options.onDisconnect] "keep". With "close" the session ends with the link: its tasks are
     *   cancelled and its outputs go to their safe state.
     * @param {number} [options.heartbeatMs]
     * @param {boolean} [options.conversation] True where a model decides what is asked for: the daemon then holds the
     *   session to what docs/reference/methods.md says of conversations.
     * @returns {Promise<HacpSession>}
     */
    openSession({ clientName, clientVersion, onDisconnect, heartbeatMs, conversation }?: {
        clientName?: string;
        clientVersion?: string;
        onDisconnect?: "keep" | "close";
        heartbeatMs?: number;
        conversation?: boolean;
    }): Promise<HacpSession>;
    /**
     * Use a session of the same principal that was opened before, by another page or by another connection.
     *
     * @param {string} sessionId
     * @returns {Promise<HacpSession>}
     * @throws {HacpError} RPC_SESSION_INVALID: it has ended, or belongs to another principal.
     */
    attach(sessionId: string): Promise<HacpSession>;
    /**
     * Halt the daemon (halt) without a session: this works where none can be opened. Otherwise as {@link HacpSession.halt}.
     *
     * @param {string} [reason]
     * @returns {Promise<HaltStatus>}
     */
    halt(reason?: string): Promise<HaltStatus>;
    /** The state of the halt (halt.status), without a session. @returns {Promise<HaltStatus>} */
    haltStatus(): Promise<HaltStatus>;
}
/**
 * A session of the daemon and its tasks.
 *
 * Events: "event" (`detail` is a {@link TaskEvent}: every event of every task that is followed, each once, in order),
 * "task" (`detail` is a {@link HacpTask} that was not known before), "gone" (the session has ended, and not by
 * `close()`: its tasks are cancelled, its outputs in their safe state; open another one), "observe" (`detail` is an
 * {@link ObserveEvent}), "denied" (it may observe no longer; `detail` is the {@link HacpError}).
 *
 * @extends {Emitter<{event: TaskEvent, task: HacpTask, gone: null, observe: ObserveEvent, denied: HacpError}>}
 */
export declare class HacpSession extends Emitter<{
    event: TaskEvent;
    task: HacpTask;
    gone: null;
    observe: ObserveEvent;
    denied: HacpError;
}> {
    #private;
    id: string;
    /** The capability flags that the policy grants; empty for a session that was attached to. */
    capabilities: string[];
    /** True when the session has ended, for any reason. */
    get ended(): boolean;
    /** True while the events of all its tasks are followed. */
    get following(): boolean;
    /** The tasks that are known here, by their ids. @returns {ReadonlyMap<string, HacpTask>} */
    get tasks(): ReadonlyMap<string, HacpTask>;
    /**
     * Make a request that names this session. @see HacpClient.call
     *
     * @param {string} method
     * @param {Record<string, unknown>} [params]
     */
    call(method: string, params?: Record<string, unknown>): Promise<Record<string, any>>;
    /**
     * Submit a task (task.submit) and follow it.
     *
     * If the link drops before the answer comes, the client submits again as soon as it has reconnected: the idempotency
     * key makes sure that nothing is done twice.
     *
     * @param {TaskRequest} task
     * @returns {Promise<HacpTask>}
     * @throws {HacpError} The daemon refused it, or the session is gone.
     * @throws {LinkError} There was no link when it was called, or the client was closed.
     */
    submit(task: TaskRequest): Promise<HacpTask>;
    /**
     * Run one tool, as a task of one step, and return its result.
     *
     * @param {string} tool
     * @param {Record<string, unknown>} [args]
     * @returns {Promise<Record<string, any>>}
     * @throws {HacpError} The step was refused, or has failed. Or as for `submit`.
     * @throws {LinkError} As for `submit`.
     */
    run(tool: string, args?: Record<string, unknown>): Promise<Record<string, any>>;
    /** Signals: every value that the board names, by its name (docs/howto/use-signals.md). Each throws as `run`. */
    signals: {
        /**
         * List the signals, with the values that are known without asking the hardware; 500 at most.
         *
         * @param {{kind?: string, name?: string}} [options] A kind of bus, and a pattern over names ("TANK*").
         * @returns {Promise<SignalRow[]>}
         */
        list: ({ kind, name }?: {
            kind?: string;
            name?: string;
        }) => Promise<SignalRow[]>;
        /** Read one. @param {string} name @returns {Promise<SignalReading>} */
        read: (name: string) => Promise<SignalReading>;
        /**
         * Bring an output to a value, with its unit ("3.3 V") if that is to be checked, or "off".
         *
         * @param {string} name
         * @param {number | string | boolean} value
         * @param {{durationMs?: number}} [options] Go back after that time.
         * @returns {Promise<SignalValue>} What was driven, which is another value where the board clamps it.
         */
        set: (name: string, value: number | string | boolean, { durationMs }?: {
            durationMs?: number;
        }) => Promise<SignalValue>;
        /**
         * Wait for changes of a signal; there are fewer if the time is over first.
         *
         * @param {string} name
         * @param {{count?: number, minChange?: number, timeoutMs?: number}} [options] 1, any, 10 000.
         * @returns {Promise<SignalChange[]>}
         */
        watch: (name: string, { count, minChange, timeoutMs }?: {
            count?: number;
            minChange?: number;
            timeoutMs?: number;
        }) => Promise<SignalChange[]>;
    };
    /** A task of this session, by its id. @param {string} taskId @returns {HacpTask} */
    task(taskId: string): HacpTask;
    /** The task as it stands (task.get). @param {string} taskId */
    get(taskId: string): Promise<Record<string, any>>;
    /** Ask for cooperative cancellation (task.cancel). @param {string} taskId */
    cancel(taskId: string): Promise<Record<string, any>>;
    /**
     * Follow a task from its first event, or from the one after the last that was seen here. Without a link, this starts
     * as soon as there is one.
     *
     * @param {string} taskId
     * @returns {Promise<HacpTask>}
     * @throws {HacpError} The session or the task does not exist.
     * @throws {LinkError} The client was closed.
     */
    subscribe(taskId: string): Promise<HacpTask>;
    /** Stop following a task. @param {string} taskId */
    unsubscribe(taskId: string): Promise<void>;
    /**
     * Follow all tasks of the session: earlier ones from their first event, and later ones of any client. Without a link,
     * this starts as soon as there is one.
     *
     * @throws {HacpError} The session does not exist.
     * @throws {LinkError} The client was closed.
     * @throws {Error} Another session of this client is followed already: give each its own client.
     */
    follow(): Promise<void>;
    /** Stop following all tasks. */
    unfollow(): Promise<void>;
    /**
     * Observe the whole daemon (observe.subscribe): "observe" events follow, the first of which is a snapshot. After a lost
     * link the stream goes on where it was; what is no longer kept is replaced by a snapshot.
     *
     * @param {{stream: string, seq: number}} [after] The last event that was seen in an earlier session.
     * @returns {Promise<Record<string, any>>} With `you`: this session's principal, policy and rights.
     * @throws {HacpError} RPC_PERMISSION_DENIED without the right `observe`.
     */
    observe(after?: {
        stream: string;
        seq: number;
    }): Promise<Record<string, any>>;
    /** The state of the whole daemon as it is now (observe.state). */
    observeState(): Promise<Record<string, any>>;
    /**
     * Read audit records (observe.audit): from a number on, or the newest.
     *
     * @param {{fromSeq?: number, limit?: number}} [options]
     */
    observeAudit({ fromSeq, limit }?: {
        fromSeq?: number;
        limit?: number;
    }): Promise<Record<string, any>>;
    /** List the tools that the session may use (tool.list). @returns {Promise<Record<string, any>[]>} */
    tools(): Promise<Record<string, any>[]>;
    /**
     * Halt the daemon (halt): no effect begins from now on, tasks with effects are cancelled, outputs go to safe states.
     * Every session may. After a LinkError it is not known if the daemon has halted: call it again when there is a link.
     *
     * @param {string} [reason] For the audit log, and for those whose steps are refused.
     * @returns {Promise<HaltStatus>} Resolved when the halt is on the disk, or cannot be written to it (`latched`).
     */
    halt(reason?: string): Promise<HaltStatus>;
    /** The state of the halt (halt.status). @returns {Promise<HaltStatus>} */
    haltStatus(): Promise<HaltStatus>;
    /**
     * End the halt (halt.reset); nothing that ran before it starts again.
     *
     * @returns {Promise<HaltStatus>}
     * @throws {HacpError} RPC_PERMISSION_DENIED without the right `reset_halt`; HALTED if an input is not clear, the stop
     *   sequence has not ended, or a halt has come since the call.
     */
    haltReset(): Promise<HaltStatus>;
    /**
     * Check a task as `submit` does, read what it would change, and run nothing (plan.prepare).
     *
     * @param {Omit<TaskRequest, "idempotency_key">} task
     * @returns {Promise<Plan>}
     */
    prepare(task: Omit<TaskRequest, "idempotency_key">): Promise<Plan>;
    /**
     * Run a plan of one's own, at most once (plan.execute), and follow its task. A plan object runs exactly as it is here;
     * a plan's id runs it as the daemon has it.
     *
     * If the link drops before the answer comes, the client asks again as soon as it has reconnected: a plan runs once.
     *
     * @param {Plan | string} plan
     * @param {object} [options]
     * @param {number} [options.waitMs] Wait so long for its approval; up to 60 000. 0.
     * @returns {Promise<HacpTask>}
     * @throws {HacpError} APPROVAL_REQUIRED: it is not approved in time. PLAN_STALE: it was executed, has expired, or is not
     *   as it is here, or what it changes is not as it was. RPC_PERMISSION_DENIED: it was rejected. Or as for `submit`.
     * @throws {LinkError} There was no link when it was called, or the client was closed.
     */
    execute(plan: Plan | string, { waitMs }?: {
        waitMs?: number;
    }): Promise<HacpTask>;
    /**
     * List one's own plans and, with the right to approve, those of others that wait for it (plan.list).
     *
     * @param {object} [options]
     * @param {number} [options.afterSeq] With `waitMs`: the `seq` of an earlier answer; the next one comes at once if there
     *   has been a change since.
     * @param {number} [options.waitMs] Wait so long for a change; up to 60 000. 0.
     * @returns {Promise<PlanList>}
     */
    plans({ afterSeq, waitMs }?: {
        afterSeq?: number;
        waitMs?: number;
    }): Promise<PlanList>;
    /**
     * Read one of these plans with its contents (plan.get).
     *
     * @param {string} planId
     * @returns {Promise<Plan>}
     * @throws {HacpError} PLAN_STALE: there is none with this id, or it is not shown to this principal.
     */
    plan(planId: string): Promise<Plan>;
    /**
     * Approve a plan exactly as it is here (plan.approve): the client computes the hash from what this object shows.
     *
     * @param {Plan} plan
     * @param {string} [reason] For the audit log.
     * @returns {Promise<number>} How many approvals are still missing.
     * @throws {HacpError} RPC_PERMISSION_DENIED: no right, or one's own plan that another must approve. PLAN_STALE: no such
     *   plan waits, or it is not as it is here.
     * @throws {TypeError} This page may not compute a hash, because it is not from https or from this machine.
     */
    approve(plan: Plan, reason?: string): Promise<number>;
    /**
     * Reject a plan, withdraw one's own, or take back one's approval of it (plan.reject); true if an approval was taken back.
     * @param {Plan | string} plan @param {string} [reason]
     */
    reject(plan: Plan | string, reason?: string): Promise<boolean>;
    /** End it (session.close): its tasks are cancelled, its outputs go to their safe state. */
    close(): Promise<Record<string, any>>;
}
/**
 * A task. Events: "event" (`detail` is a {@link TaskEvent}).
 *
 * @extends {Emitter<{event: TaskEvent}>}
 */
export declare class HacpTask extends Emitter<{
    event: TaskEvent;
}> {
    #private;
    id: string;
    /** The number of the last event that was seen; 0 before the first. */
    get lastSeq(): number;
    /** The number of progress events that the daemon replaced by newer ones before it sent them. */
    get coalesced(): number;
    /** True when no more events will come. */
    get finished(): boolean;
    /** See {@link HacpSession.get}. */
    get(): Promise<Record<string, any>>;
    /** See {@link HacpSession.cancel}. */
    cancel(): Promise<Record<string, any>>;
    /**
     * Wait for the last event, `task_finish`; a task that failed or was cancelled has one, too.
     *
     * @returns {Promise<TaskEvent>}
     * @throws {HacpError} The session ended first, or has forgotten the task.
     */
    wait(): Promise<TaskEvent>;
}
export type Pending = Map<number, Pending>;
export type Hooks = {
    nextId: () => number;
    /**
     * The handshake is done.
     */
    opened: () => void;
    /**
     * The server has sent a valid message.
     */
    heard: () => void;
    notified: (method: string, params: any) => void;
    /**
     * The session of a request does not exist.
     */
    refused: (params: Record<string, unknown>) => void;
    /**
     * No message has come for `quietMs`.
     */
    quiet: () => void;
    lost: (reason: string) => void;
    /**
     * The server does not speak HACP.
     */
    nonsense: (reason: string) => void;
};
export {};
