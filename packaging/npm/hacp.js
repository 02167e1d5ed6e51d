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
export const SYMBOLS = Object.freeze({
  [-32700]: "PARSE_ERROR",
  [-32600]: "INVALID_REQUEST",
  [-32601]: "METHOD_NOT_FOUND",
  [-32602]: "INVALID_PARAMS",
  [-32603]: "INTERNAL_ERROR",
  [-32000]: "RPC_SESSION_INVALID",
  [-32001]: "RPC_TASK_NOT_FOUND",
  [-32002]: "RPC_TOOL_NOT_FOUND",
  [-32003]: "RPC_PERMISSION_DENIED",
  [-32004]: "RPC_RESOURCE_BUSY",
  [-32005]: "QUEUE_FULL",
  [-32006]: "RATE_LIMITED",
  [-32007]: "SHUTTING_DOWN",
  [-32008]: "UNSUPPORTED_VERSION",
  [-32009]: "DEVICE_ERROR",
  [-32010]: "TIMED_OUT",
  [-32011]: "AUDIT_UNAVAILABLE",
  [-32012]: "HALTED",
  [-32013]: "LIMIT_VIOLATED",
  [-32014]: "INTERLOCK_OPEN",
  [-32015]: "EFFECT_NOT_SEEN",
  [-32016]: "APPROVAL_REQUIRED",
  [-32017]: "PLAN_STALE",
});

const SESSION_INVALID = -32000;
const TASK_NOT_FOUND = -32001;
const PLAN_STALE = -32017;
const MAX_BATCH = 64;
const SUBPROTOCOL_TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/; // RFC 9110 "token": all that a subprotocol may consist of
const NO_TASK = "0"; // no task has this id: asking for it asks only if the session exists

/** The server's refusal of a request. Decide by `code` and `data`, never by `message`. */
export class HacpError extends Error {
  /**
   * @param {number} code
   * @param {string} message
   * @param {Record<string, unknown>} [data]
   */
  constructor(code, message, data = {}) {
    super(message);
    this.name = "HacpError";
    /** The JSON-RPC error code. */
    this.code = code;
    /** Its symbol; "UNKNOWN" for a later release's code. @type {string} */
    this.symbol = SYMBOLS[/** @type {keyof typeof SYMBOLS} */ (code)] ?? "UNKNOWN";
    this.data = data;
  }
}

/** There is no link, or it was lost before the answer came: the request may or may not have been carried out. */
export class LinkError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "LinkError";
  }
}

/**
 * An EventTarget that knows its events: a listener for a misspelt event is a type error, and `detail` has a type.
 *
 * @template {Record<string, unknown>} Events The type of `detail` by the event's name.
 */
class Emitter extends EventTarget {
  /**
   * @template {keyof Events & string} K
   * @param {K} type
   * @param {((event: CustomEvent<Events[K]>) => void) | {handleEvent(event: CustomEvent<Events[K]>): void} | null} listener
   * @param {boolean | AddEventListenerOptions} [options]
   */
  addEventListener(type, listener, options) {
    super.addEventListener(type, /** @type {any} */ (listener), options);
  }

  /**
   * @template {keyof Events & string} K
   * @param {K} type
   * @param {((event: CustomEvent<Events[K]>) => void) | {handleEvent(event: CustomEvent<Events[K]>): void} | null} listener
   * @param {boolean | EventListenerOptions} [options]
   */
  removeEventListener(type, listener, options) {
    super.removeEventListener(type, /** @type {any} */ (listener), options);
  }

  /** @internal @template {keyof Events & string} K @param {K} type @param {Events[K]} detail */
  _emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/**
 * A connection to a daemon that reconnects when it drops.
 *
 * Events: "state" (`detail` is a {@link StateDetail}).
 *
 * @extends {Emitter<{state: StateDetail}>}
 */
export class HacpClient extends Emitter {
  #url;
  #protocols;
  #options;
  /** @type {State} */
  #state = "closed";
  #wanted = false;
  #attempt = 0;
  #wasOpen = false;
  #lastId = 0;
  /** @type {Link | null} */
  #link = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #pause;
  /** @type {Map<string, HacpSession>} */
  #sessions = new Map();
  /** @type {{resolve: () => void, reject: (error: Error) => void}[]} */
  #waiters = [];
  #online = () => this.reconnectNow();

  /**
   * @param {string} url "ws://host:port" or "wss://host:port".
   * @param {ClientOptions} [options]
   * @throws {TypeError} The address or the token cannot be one, or there is no WebSocket; the message says why.
   */
  constructor(url, options = {}) {
    super();
    let parsed;
    try {
      parsed = new URL(url);
    } catch {
      throw new TypeError(`not an address: ${JSON.stringify(url)}; one looks like ws://127.0.0.1:7118`);
    }
    if (parsed.protocol !== "ws:" && parsed.protocol !== "wss:") {
      throw new TypeError(`an address begins with ws:// or wss://, not with ${parsed.protocol}//`);
    }
    if (parsed.hash) {
      throw new TypeError("the address of a WebSocket has no fragment (#…)");
    }
    if (options.token && !SUBPROTOCOL_TOKEN.test(options.token)) {
      throw new TypeError("the token has characters that a handshake cannot carry; base64url has none of them");
    }
    const { WebSocket: makes = globalThis.WebSocket } = options;
    if (!makes) {
      throw new TypeError("this runtime has no WebSocket: use Node 22 or later, or pass one as `options.WebSocket`");
    }
    this.#url = parsed.href;
    this.#protocols = options.token ? ["hacp.v0", `bearer.${options.token}`] : ["hacp.v0"];
    this.#options = {
      firstPauseMs: 250,
      longestPauseMs: 10_000,
      openingMs: 15_000,
      quietMs: 15_000,
      answerMs: 10_000,
      ...options,
      WebSocket: makes,
    };
  }

  /** The daemon's address. */
  get url() {
    return this.#url;
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  /**
   * Open the link, and keep it open from now on.
   *
   * @returns {Promise<void>} Resolved when the link is open for the first time, after any number of attempts; rejected
   *   with a LinkError if the client is closed before.
   */
  connect() {
    if (!this.#wanted) {
      this.#wanted = true;
      this.#attempt = 0;
      globalThis.addEventListener?.("online", this.#online);
      this.#dial();
    }
    return this.whenOpen();
  }

  /** Resolved when requests can be made; rejected with a LinkError if the client is closed. @returns {Promise<void>} */
  whenOpen() {
    if (this.#state === "open") return Promise.resolve();
    if (this.#state === "closed") return Promise.reject(new LinkError("the client is closed"));
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  /** Make the next attempt now instead of after the pause. */
  reconnectNow() {
    if (this.#state === "waiting") {
      clearTimeout(this.#pause);
      this.#dial();
    }
  }

  /** Close the link and stay closed. Sessions opened with "keep" go on until they have been idle for 300 s. */
  close() {
    this.#shut("it was closed here");
  }

  /**
   * Make a request.
   *
   * @param {string} method
   * @param {Record<string, unknown>} [params]
   * @returns {Promise<Record<string, any>>} Its result.
   * @throws {HacpError} The server refused.
   * @throws {LinkError} There is no link, or it dropped before the answer came.
   */
  async call(method, params = {}) {
    if (this.#state !== "open" || !this.#link) throw new LinkError(`${method}: there is no link to the daemon`);
    return this.#link.call(method, params);
  }

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
  async openSession({ clientName, clientVersion, onDisconnect = "keep", heartbeatMs, conversation } = {}) {
    const opened = await this.call("session.open", {
      client_name: clientName,
      client_version: clientVersion,
      protocol_version: "0.1.0",
      on_disconnect: onDisconnect,
      heartbeat_ms: heartbeatMs,
      conversation,
    });
    return this.#keep(new HacpSession(this, opened.session_id, opened.capabilities));
  }

  /**
   * Use a session of the same principal that was opened before, by another page or by another connection.
   *
   * @param {string} sessionId
   * @returns {Promise<HacpSession>}
   * @throws {HacpError} RPC_SESSION_INVALID: it has ended, or belongs to another principal.
   */
  async attach(sessionId) {
    const known = this.#sessions.get(sessionId);
    if (known) return known;
    const session = new HacpSession(this, sessionId, []);
    await session._probe();
    return this.#keep(session);
  }

  /**
   * Halt the daemon (halt) without a session: this works where none can be opened. Otherwise as {@link HacpSession.halt}.
   *
   * @param {string} [reason]
   * @returns {Promise<HaltStatus>}
   */
  async halt(reason) {
    return /** @type {HaltStatus} */ (await this.call("halt", { reason }));
  }

  /** The state of the halt (halt.status), without a session. @returns {Promise<HaltStatus>} */
  async haltStatus() {
    return /** @type {HaltStatus} */ (await this.call("halt.status"));
  }

  /** @param {HacpSession} session */
  #keep(session) {
    this.#sessions.set(session.id, session);
    return session;
  }

  /** @internal A session that has ended needs no link. @param {HacpSession} session */
  _forget(session) {
    this.#sessions.delete(session.id);
  }

  /** @internal Task events do not name their session: only one can take those of tasks that it does not know yet. */
  _followed() {
    return [...this.#sessions.values()].find((session) => session.following);
  }

  // --- the link -------------------------------------------------------------------------------------------------

  #dial() {
    this.#become("connecting");
    let socket;
    try {
      socket = new this.#options.WebSocket(this.#url, this.#protocols);
    } catch (error) {
      // A page from https may not use ws://, for example: another attempt would not help.
      this.#shut(error instanceof Error ? error.message : String(error));
      return;
    }
    const link = new Link(socket, this.#options, {
      nextId: () => ++this.#lastId,
      opened: () => void this.#opened(link),
      heard: () => {
        this.#attempt = 0;
      },
      notified: (method, params) => this.#notified(method, params),
      refused: (params) => this.#sessions.get(String(params.session_id))?._end(),
      quiet: () => this.#listening()?._probe().catch(() => undefined), // its answer matters, not what it says
      lost: (reason) => this.#lost(link, reason),
      nonsense: (reason) => this.#shut(reason),
    });
    this.#link = link;
  }

  /** Resume the subscriptions; only then is the link open for other requests. @param {Link} link */
  async #opened(link) {
    try {
      await Promise.all([...this.#sessions.values()].map((session) => session._resume(link)));
    } catch (error) {
      if (error instanceof LinkError) return; // `lost` has been called as well
      throw error;
    }
    if (link !== this.#link) return;
    link.settled();
    this.#wasOpen = true;
    this.#become("open");
  }

  #listening() {
    return [...this.#sessions.values()].find((session) => session._listening);
  }

  /** @param {Link} link @param {string} reason */
  #lost(link, reason) {
    if (link !== this.#link) return;
    this.#link = null;
    const { firstPauseMs, longestPauseMs } = this.#options;
    // Up to half of it at random: a thousand pages that lost one daemon must not come back at the same moment.
    const pause = Math.min(longestPauseMs, firstPauseMs * 2 ** this.#attempt) * (0.5 + Math.random() / 2);
    this.#attempt += 1;
    this.#pause = setTimeout(() => this.#dial(), pause);
    this.#become("waiting", { reason, retryInMs: Math.round(pause), wasOpen: this.#wasOpen });
  }

  /** @param {string} reason */
  #shut(reason) {
    if (!this.#wanted) return;
    this.#wanted = false;
    clearTimeout(this.#pause);
    globalThis.removeEventListener?.("online", this.#online);
    const link = this.#link;
    this.#link = null;
    link?.drop(reason);
    this.#become("closed", { reason });
  }

  /** @param {State} state @param {Partial<StateDetail>} [more] */
  #become(state, more = {}) {
    this.#state = state;
    if (state === "open" || state === "closed") {
      const waiters = this.#waiters;
      this.#waiters = [];
      for (const waiter of waiters) {
        if (state === "open") waiter.resolve();
        else waiter.reject(new LinkError(more.reason ?? "the client is closed"));
      }
    }
    this._emit("state", { state, attempt: this.#attempt, ...more });
  }

  /** @param {string} method @param {any} params */
  #notified(method, params) {
    if (method === "observe.event") {
      for (const session of this.#sessions.values()) session._observed(params);
      return;
    }
    if (method !== "task.event" || typeof params?.task_id !== "string") return; // a notification of a later release
    for (const session of this.#sessions.values()) {
      if (session.tasks.has(params.task_id)) {
        session._take(params);
        return;
      }
    }
    this._followed()?._take(params);
  }
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
export class HacpSession extends Emitter {
  #client;
  /** @type {Map<string, HacpTask>} */
  #tasks = new Map();
  #following = false;
  #ended = false;
  /** @type {{stream?: string, from_seq?: number} | null} Where the stream goes on; null while it is not observed. */
  #observing = null;

  /** @internal @param {HacpClient} client @param {string} id @param {string[]} capabilities */
  constructor(client, id, capabilities) {
    super();
    this.#client = client;
    this.id = id;
    /** The capability flags that the policy grants; empty for a session that was attached to. */
    this.capabilities = capabilities;
  }

  /** True when the session has ended, for any reason. */
  get ended() {
    return this.#ended;
  }

  /** True while the events of all its tasks are followed. */
  get following() {
    return this.#following;
  }

  /** The tasks that are known here, by their ids. @returns {ReadonlyMap<string, HacpTask>} */
  get tasks() {
    return this.#tasks;
  }

  /**
   * Make a request that names this session. @see HacpClient.call
   *
   * @param {string} method
   * @param {Record<string, unknown>} [params]
   */
  call(method, params = {}) {
    return this.#client.call(method, { session_id: this.id, ...params });
  }

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
  async submit(task) {
    const params = { task: { idempotency_key: newKey(), ...task }, subscribe: !this.#following };
    return this.#begun("task.submit", params);
  }

  /**
   * Make a request that begins a task, at most once however often it is made, until it is answered.
   *
   * @param {"task.submit" | "plan.execute"} method
   * @param {Record<string, unknown>} params
   * @returns {Promise<HacpTask>} The task, followed.
   */
  async #begun(method, params) {
    if (this.#client.state !== "open") throw new LinkError(`${method}: there is no link to the daemon`);
    for (let again = false; ; again = true) {
      try {
        const { task_id } = await this.call(method, params);
        const begun = this.task(task_id);
        begun._followed = true;
        return begun;
      } catch (error) {
        if (again && error instanceof HacpError && error.code === PLAN_STALE && error.data.task_id) {
          // The lost answer was this task. The refusal has subscribed to nothing.
          return this.#following ? this.task(String(error.data.task_id)) : this.subscribe(String(error.data.task_id));
        }
        if (!(error instanceof LinkError)) throw error;
        await this.#client.whenOpen();
        if (this.#ended) throw new HacpError(SESSION_INVALID, `the session is gone, and ${error.message}`);
      }
    }
  }

  /**
   * Run one tool, as a task of one step, and return its result.
   *
   * @param {string} tool
   * @param {Record<string, unknown>} [args]
   * @returns {Promise<Record<string, any>>}
   * @throws {HacpError} The step was refused, or has failed. Or as for `submit`.
   * @throws {LinkError} As for `submit`.
   */
  async run(tool, args = {}) {
    const task = await this.submit({ intent: `run ${tool}`, steps: [{ tool, args }] });
    await task.wait();
    const ended = await task.get();
    const [step] = ended.steps;
    if (ended.status === "SUCCESS") return step.result;
    const { error_code, error, error_data } = step.error_code ? step : ended;
    throw new HacpError(error_code ?? 0, error ?? `${tool}: the task ended ${ended.status}`, error_data);
  }

  /** Signals: every value that the board names, by its name (docs/howto/use-signals.md). Each throws as `run`. */
  signals = {
    /**
     * List the signals, with the values that are known without asking the hardware; 500 at most.
     *
     * @param {{kind?: string, name?: string}} [options] A kind of bus, and a pattern over names ("TANK*").
     * @returns {Promise<SignalRow[]>}
     */
    list: async ({ kind, name } = {}) => (await this.run("signal.list", { kind, name })).signals,

    /** Read one. @param {string} name @returns {Promise<SignalReading>} */
    read: async (name) => /** @type {SignalReading} */ (await this.run("signal.read", { name })),

    /**
     * Bring an output to a value, with its unit ("3.3 V") if that is to be checked, or "off".
     *
     * @param {string} name
     * @param {number | string | boolean} value
     * @param {{durationMs?: number}} [options] Go back after that time.
     * @returns {Promise<SignalValue>} What was driven, which is another value where the board clamps it.
     */
    set: async (name, value, { durationMs } = {}) =>
      (await this.run("signal.set", { name, value, duration_ms: durationMs })).value,

    /**
     * Wait for changes of a signal; there are fewer if the time is over first.
     *
     * @param {string} name
     * @param {{count?: number, minChange?: number, timeoutMs?: number}} [options] 1, any, 10 000.
     * @returns {Promise<SignalChange[]>}
     */
    watch: async (name, { count, minChange, timeoutMs } = {}) =>
      (await this.run("signal.watch", { name, count, min_change: minChange, timeout_ms: timeoutMs })).changes,
  };

  /** A task of this session, by its id. @param {string} taskId @returns {HacpTask} */
  task(taskId) {
    const known = this.#tasks.get(taskId);
    if (known) return known;
    const task = new HacpTask(this, taskId);
    this.#tasks.set(taskId, task);
    this._emit("task", task);
    return task;
  }

  /** The task as it stands (task.get). @param {string} taskId */
  get(taskId) {
    return this.call("task.get", { task_id: taskId });
  }

  /** Ask for cooperative cancellation (task.cancel). @param {string} taskId */
  cancel(taskId) {
    return this.call("task.cancel", { task_id: taskId });
  }

  /**
   * Follow a task from its first event, or from the one after the last that was seen here. Without a link, this starts
   * as soon as there is one.
   *
   * @param {string} taskId
   * @returns {Promise<HacpTask>}
   * @throws {HacpError} The session or the task does not exist.
   * @throws {LinkError} The client was closed.
   */
  async subscribe(taskId) {
    const task = this.task(taskId);
    task._followed = true; // before the answer: what follows it may come in the same turn
    try {
      await this.#begin({ task_id: taskId, from_seq: task.lastSeq + 1 });
    } catch (error) {
      task._followed = false;
      throw error;
    }
    return task;
  }

  /** Stop following a task. @param {string} taskId */
  async unsubscribe(taskId) {
    const task = this.#tasks.get(taskId);
    if (task) task._followed = false;
    await this.call("task.events.unsubscribe", { task_id: taskId });
  }

  /**
   * Follow all tasks of the session: earlier ones from their first event, and later ones of any client. Without a link,
   * this starts as soon as there is one.
   *
   * @throws {HacpError} The session does not exist.
   * @throws {LinkError} The client was closed.
   * @throws {Error} Another session of this client is followed already: give each its own client.
   */
  async follow() {
    const other = this.#client._followed();
    if (other && other !== this) {
      throw new Error("task events do not name their session: follow one session per client");
    }
    this.#following = true; // before the answer, as in `subscribe`
    try {
      await this.#begin({});
    } catch (error) {
      this.#following = false;
      throw error;
    }
  }

  /** Subscribe. If the link drops before the answer, the next link resumes the subscription. @param {object} what */
  async #begin(what) {
    try {
      await this.call("task.events.subscribe", { ...what });
    } catch (error) {
      if (!(error instanceof LinkError)) throw error;
      await this.#client.whenOpen();
      if (this.#ended) throw new HacpError(SESSION_INVALID, "the session is gone");
    }
  }

  /** Stop following all tasks. */
  async unfollow() {
    this.#following = false;
    for (const task of this.#tasks.values()) task._followed = false;
    await this.call("task.events.unsubscribe");
  }

  /**
   * Observe the whole daemon (observe.subscribe): "observe" events follow, the first of which is a snapshot. After a lost
   * link the stream goes on where it was; what is no longer kept is replaced by a snapshot.
   *
   * @param {{stream: string, seq: number}} [after] The last event that was seen in an earlier session.
   * @returns {Promise<Record<string, any>>} With `you`: this session's principal, policy and rights.
   * @throws {HacpError} RPC_PERMISSION_DENIED without the right `observe`.
   */
  async observe(after) {
    this.#observing = after ? { stream: after.stream, from_seq: after.seq + 1 } : {};
    try {
      return await this.call("observe.subscribe", { ...this.#observing });
    } catch (error) {
      if (error instanceof HacpError) this.#observing = null;
      throw error;
    }
  }

  /** The state of the whole daemon as it is now (observe.state). */
  observeState() {
    return this.call("observe.state");
  }

  /**
   * Read audit records (observe.audit): from a number on, or the newest.
   *
   * @param {{fromSeq?: number, limit?: number}} [options]
   */
  observeAudit({ fromSeq, limit } = {}) {
    return this.call("observe.audit", { from_seq: fromSeq, limit });
  }

  /** List the tools that the session may use (tool.list). @returns {Promise<Record<string, any>[]>} */
  async tools() {
    return (await this.call("tool.list")).tools;
  }

  /**
   * Halt the daemon (halt): no effect begins from now on, tasks with effects are cancelled, outputs go to safe states.
   * Every session may. After a LinkError it is not known if the daemon has halted: call it again when there is a link.
   *
   * @param {string} [reason] For the audit log, and for those whose steps are refused.
   * @returns {Promise<HaltStatus>} Resolved when the halt is on the disk, or cannot be written to it (`latched`).
   */
  async halt(reason) {
    return /** @type {HaltStatus} */ (await this.call("halt", { reason }));
  }

  /** The state of the halt (halt.status). @returns {Promise<HaltStatus>} */
  async haltStatus() {
    return /** @type {HaltStatus} */ (await this.call("halt.status"));
  }

  /**
   * End the halt (halt.reset); nothing that ran before it starts again.
   *
   * @returns {Promise<HaltStatus>}
   * @throws {HacpError} RPC_PERMISSION_DENIED without the right `reset_halt`; HALTED if an input is not clear, the stop
   *   sequence has not ended, or a halt has come since the call.
   */
  async haltReset() {
    return /** @type {HaltStatus} */ (await this.call("halt.reset"));
  }

  /**
   * Check a task as `submit` does, read what it would change, and run nothing (plan.prepare).
   *
   * @param {Omit<TaskRequest, "idempotency_key">} task
   * @returns {Promise<Plan>}
   */
  async prepare(task) {
    return /** @type {Plan} */ (await this.call("plan.prepare", { task }));
  }

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
  async execute(plan, { waitMs } = {}) {
    const named = typeof plan === "string" ? { plan_id: plan } : { plan_id: plan.plan_id, hash: await hashOf(plan) };
    return this.#begun("plan.execute", { ...named, wait_ms: waitMs, subscribe: !this.#following });
  }

  /**
   * List one's own plans and, with the right to approve, those of others that wait for it (plan.list).
   *
   * @param {object} [options]
   * @param {number} [options.afterSeq] With `waitMs`: the `seq` of an earlier answer; the next one comes at once if there
   *   has been a change since.
   * @param {number} [options.waitMs] Wait so long for a change; up to 60 000. 0.
   * @returns {Promise<PlanList>}
   */
  async plans({ afterSeq, waitMs } = {}) {
    return /** @type {PlanList} */ (await this.call("plan.list", { after_seq: afterSeq, wait_ms: waitMs }));
  }

  /**
   * Read one of these plans with its contents (plan.get).
   *
   * @param {string} planId
   * @returns {Promise<Plan>}
   * @throws {HacpError} PLAN_STALE: there is none with this id, or it is not shown to this principal.
   */
  async plan(planId) {
    return /** @type {Plan} */ (await this.call("plan.get", { plan_id: planId }));
  }

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
  async approve(plan, reason) {
    const params = { plan_id: plan.plan_id, hash: await hashOf(plan), reason };
    return (await this.call("plan.approve", params)).missing;
  }

  /**
   * Reject a plan, withdraw one's own, or take back one's approval of it (plan.reject); true if an approval was taken back.
   * @param {Plan | string} plan @param {string} [reason]
   */
  async reject(plan, reason) {
    const answer = await this.call("plan.reject", { plan_id: typeof plan === "string" ? plan : plan.plan_id, reason });
    return answer.taken_back === true;
  }

  /** End it (session.close): its tasks are cancelled, its outputs go to their safe state. */
  async close() {
    const answer = await this.call("session.close");
    this.#finish(new HacpError(SESSION_INVALID, "the session was closed"));
    return answer;
  }

  // --- for the client -------------------------------------------------------------------------------------------

  /** @internal True while events are awaited. */
  get _listening() {
    return this.#following || this.#observing !== null || [...this.#tasks.values()].some((task) => task._followed && !task.finished);
  }

  /** @internal Ask if the session exists, and for nothing else. Throws RPC_SESSION_INVALID if not. */
  async _probe(link = /** @type {{call: HacpClient["call"]}} */ (this.#client)) {
    try {
      await link.call("task.get", { session_id: this.id, task_id: NO_TASK });
    } catch (error) {
      if (!(error instanceof HacpError) || error.code === SESSION_INVALID) throw error;
    }
  }

  /** @internal Resume every subscription over a new link, after the last event that was seen. @param {Link} link */
  async _resume(link) {
    /** @type {[string, Record<string, unknown>][]} */
    const wanted = [];
    // The whole session first, since it starts each history from its first event; the tasks' positions then replace
    // those. All in one batch, so that no history is sent in between.
    if (this.#following) wanted.push(["task.events.subscribe", { session_id: this.id }]);
    if (this.#observing) wanted.push(["observe.subscribe", { session_id: this.id, ...this.#observing }]);
    for (const task of this.#tasks.values()) {
      if (!task.finished && (task._followed || this.#following)) {
        const after = { session_id: this.id, task_id: task.id, from_seq: task.lastSeq + 1 };
        wanted.push(["task.events.subscribe", after]);
      }
    }
    if (!wanted.length) {
      await this._probe(link).catch((error) => {
        if (!(error instanceof HacpError)) throw error; // refused: `_end` has been called
      });
    }
    for (let done = 0; done < wanted.length && !this.#ended; done += MAX_BATCH) {
      const part = wanted.slice(done, done + MAX_BATCH);
      const answers = await Promise.allSettled(link.batch(part));
      answers.forEach((answer, index) => {
        if (answer.status === "fulfilled") return;
        if (!(answer.reason instanceof HacpError)) throw answer.reason;
        if (part[index][0] === "observe.subscribe" && !this.#ended) {
          this.#observing = null;
          this._emit("denied", answer.reason);
        }
        const taskId = part[index][1].task_id;
        if (typeof taskId === "string" && answer.reason.code === TASK_NOT_FOUND) {
          this.#tasks.get(taskId)?._fail(answer.reason);
        }
      });
    }
  }

  /** @internal @param {TaskEvent} event */
  _take(event) {
    const task = this.task(event.task_id);
    if (!task._note(event)) return; // seen before
    task._emit("event", event);
    this._emit("event", event);
  }

  /** @internal @param {ObserveEvent} event */
  _observed(event) {
    if (!this.#observing) return;
    this.#observing = { stream: event.stream, from_seq: event.seq + 1 };
    this._emit("observe", event);
  }

  /** @internal Handle a session that the server does not know any more. */
  _end() {
    if (this.#ended) return;
    this.#finish(new HacpError(SESSION_INVALID, "the session is gone"));
    this._emit("gone", null);
  }

  /** @param {HacpError} why */
  #finish(why) {
    this.#ended = true;
    this.#following = false;
    this.#client._forget(this);
    for (const task of this.#tasks.values()) task._fail(why);
  }
}

/**
 * A task. Events: "event" (`detail` is a {@link TaskEvent}).
 *
 * @extends {Emitter<{event: TaskEvent}>}
 */
export class HacpTask extends Emitter {
  #session;
  #lastSeq = 0;
  #coalesced = 0;
  /** @type {TaskEvent | null} */
  #last = null;
  /** @type {HacpError | null} */
  #failure = null;
  /** @type {{resolve: (event: TaskEvent) => void, reject: (error: Error) => void}[]} */
  #waiters = [];
  /** @internal */
  _followed = false;

  /** @internal @param {HacpSession} session @param {string} id */
  constructor(session, id) {
    super();
    this.#session = session;
    this.id = id;
  }

  /** The number of the last event that was seen; 0 before the first. */
  get lastSeq() {
    return this.#lastSeq;
  }

  /** The number of progress events that the daemon replaced by newer ones before it sent them. */
  get coalesced() {
    return this.#coalesced;
  }

  /** True when no more events will come. */
  get finished() {
    return this.#last !== null || this.#failure !== null;
  }

  /** See {@link HacpSession.get}. */
  get() {
    return this.#session.get(this.id);
  }

  /** See {@link HacpSession.cancel}. */
  cancel() {
    return this.#session.cancel(this.id);
  }

  /**
   * Wait for the last event, `task_finish`; a task that failed or was cancelled has one, too.
   *
   * @returns {Promise<TaskEvent>}
   * @throws {HacpError} The session ended first, or has forgotten the task.
   */
  wait() {
    if (this.#last) return Promise.resolve(this.#last);
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  /** @internal Record the event; true if it is new. @param {TaskEvent} event */
  _note(event) {
    if (event.seq <= this.#lastSeq) return false;
    this.#coalesced += event.seq - this.#lastSeq - 1;
    this.#lastSeq = event.seq;
    if (event.phase === "task_finish") {
      this.#last = event;
      for (const waiter of this.#waiters.splice(0)) waiter.resolve(event);
    }
    return true;
  }

  /** @internal @param {HacpError} error */
  _fail(error) {
    if (this.finished) return;
    this.#failure = error;
    for (const waiter of this.#waiters.splice(0)) waiter.reject(error);
  }
}

/**
 * One WebSocket connection from its handshake to its end: requests out, answers and notifications in.
 *
 * @typedef {object} Hooks
 * @property {() => number} nextId
 * @property {() => void} opened The handshake is done.
 * @property {() => void} heard The server has sent a valid message.
 * @property {(method: string, params: any) => void} notified
 * @property {(params: Record<string, unknown>) => void} refused The session of a request does not exist.
 * @property {() => void} quiet No message has come for `quietMs`.
 * @property {(reason: string) => void} lost
 * @property {(reason: string) => void} nonsense The server does not speak HACP.
 */
class Link {
  #socket;
  #hooks;
  #options;
  /**
   * @typedef {object} Pending A request that waits for its answer.
   * @property {(result: any) => void} resolve
   * @property {(error: Error) => void} reject
   * @property {string} method
   * @property {Record<string, unknown>} params
   * @property {number} dueAt When it was sent, and the time that it is to wait (`wait_ms`), by `performance.now()`.
   *
   * @type {Map<number, Pending>}
   */
  #pending = new Map();
  #heardAt = performance.now();
  #over = false;
  /** @type {unknown[]} Messages that have come and are not handled yet. */
  #inbox = [];
  #held = false;
  #isUp = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #watch;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #opening;

  /**
   * @param {WebSocket} socket
   * @param {{openingMs: number, quietMs: number, answerMs: number}} options
   * @param {Hooks} hooks
   */
  constructor(socket, options, hooks) {
    this.#socket = socket;
    this.#options = options;
    this.#hooks = hooks;
    this.#opening = setTimeout(() => this.#fail("the daemon did not answer in time"), options.openingMs);
    socket.onopen = () => {
      this.#isUp = true;
      this.#heardAt = performance.now();
      hooks.opened();
    };
    socket.onmessage = (message) => {
      this.#inbox.push(message.data);
      this.#drain();
    };
    socket.onclose = (event) => {
      this.#held = false;
      this.#drain();
      const code = event.code && event.code !== 1006 ? ` (${event.code})` : ""; // 1006: there was no code
      const broke = this.#isUp ? "the link broke" : "the daemon did not accept the link";
      const how = event.wasClean ? "the daemon closed the link" : broke;
      this.#fail((event.reason || how) + code);
    };
  }

  /** The subscriptions are resumed: from now on the link is watched for silence. */
  settled() {
    clearTimeout(this.#opening);
    this.#watch = setInterval(() => this.#look(), Math.min(this.#options.quietMs, this.#options.answerMs) / 3);
  }

  /** @param {string} method @param {Record<string, unknown>} params @returns {Promise<any>} */
  call(method, params) {
    const { request, answer } = this.#prepare(method, params);
    this.#send(request);
    return answer;
  }

  /**
   * Send requests as one batch; return their answers.
   *
   * @param {[string, Record<string, unknown>][]} calls
   * @returns {Promise<any>[]}
   */
  batch(calls) {
    const prepared = calls.map(([method, params]) => this.#prepare(method, params));
    this.#send(prepared.map(({ request }) => request));
    return prepared.map(({ answer }) => answer);
  }

  /** Close the link, and fail the requests that wait. @param {string} reason */
  drop(reason) {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#opening);
    clearInterval(this.#watch);
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    for (const { method, reject } of this.#pending.values()) {
      reject(new LinkError(`the link was lost before ${method} was answered: ${reason}`));
    }
    this.#pending.clear();
  }

  /** @param {string} method @param {Record<string, unknown>} params */
  #prepare(method, params) {
    const id = this.#hooks.nextId();
    const answer = new Promise((resolve, reject) => {
      if (this.#over) reject(new LinkError(`${method}: the link is lost`));
      else this.#pending.set(id, { resolve, reject, method, params, dueAt: performance.now() + waitOf(params) });
    });
    return { request: { jsonrpc: "2.0", id, method, params }, answer };
  }

  /** @param {unknown} document */
  #send(document) {
    if (!this.#over) this.#socket.send(JSON.stringify(document));
  }

  /**
   * Handle the messages that have come, up to the next answer.
   *
   * A browser runs what waits for an answer before it delivers the next message. Node may deliver several messages in
   * one turn: then the events of a task would come before its `submit` has returned it, and before anyone can listen.
   */
  #drain() {
    while (this.#inbox.length && !this.#held && !this.#over) this.#receive(this.#inbox.shift());
  }

  /** Handle no further message in this turn. */
  #hold() {
    const { setImmediate } = /** @type {{setImmediate?: (turn: () => void) => void}} */ (globalThis);
    if (!setImmediate || this.#held) return; // a browser
    this.#held = true;
    setImmediate(() => {
      this.#held = false;
      this.#drain();
    });
  }

  /** @param {unknown} data */
  #receive(data) {
    let document;
    try {
      if (typeof data !== "string") throw new SyntaxError("not text");
      document = JSON.parse(data);
    } catch {
      this.#hooks.nonsense("what answers at this address does not speak HACP: it sent something other than JSON");
      return;
    }
    this.#heardAt = performance.now();
    this.#hooks.heard();
    for (const member of Array.isArray(document) ? document : [document]) this.#take(member);
  }

  /** @param {any} message */
  #take(message) {
    if (typeof message?.method === "string") {
      this.#hooks.notified(message.method, message.params);
      return;
    }
    const pending = this.#pending.get(message?.id);
    if (!pending) return;
    this.#pending.delete(message.id);
    this.#hold();
    if (!message.error) {
      pending.resolve(message.result);
      return;
    }
    const { code, message: text, data } = message.error;
    pending.reject(new HacpError(code, text, data));
    if (code === SESSION_INVALID && pending.params.session_id) this.#hooks.refused(pending.params);
  }

  #look() {
    const now = performance.now();
    const quiet = now - this.#heardAt;
    const dueAt = Math.min(...[...this.#pending.values()].map((one) => one.dueAt)); // Infinity where nothing is pending
    if (now - dueAt > this.#options.answerMs && quiet > this.#options.answerMs) {
      this.#fail("the daemon has not answered for too long");
    } else if (quiet > this.#options.quietMs && dueAt > now) {
      this.#hooks.quiet();
    }
  }

  /** @param {string} reason */
  #fail(reason) {
    if (this.#over) return;
    this.drop(reason);
    this.#hooks.lost(reason);
  }
}

/** Milliseconds for which the daemon may hold the answer back. @param {Record<string, unknown>} params */
function waitOf(params) {
  return typeof params.wait_ms === "number" ? params.wait_ms : 0;
}

/** Return 128 random bits in hex. (`crypto.randomUUID` exists only for pages from https or from this machine.) */
function newKey() {
  return hex(crypto.getRandomValues(new Uint8Array(16)));
}

/** Return the hash of what a plan shows. @param {Plan} plan */
async function hashOf({ intent, constraints, steps }) {
  if (!crypto.subtle) {
    throw new TypeError("a browser computes the hash of a plan only for a page from https or from this machine");
  }
  const shown = new TextEncoder().encode(canonical({ intent, constraints, steps }));
  return `sha256:${hex(new Uint8Array(await crypto.subtle.digest("SHA-256", shown)))}`;
}

/** Return the RFC 8785 form of a JSON value. @param {any} value @returns {string} */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort(); // by UTF-16 code units, as the RFC has it
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join()}}`;
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
