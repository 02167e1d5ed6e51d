/**
 * HACP over WebSocket, for browsers and for any other runtime that has WebSocket and EventTarget.
 *
 * It owns one link to a daemon, and builds it anew when it drops: with growing pauses, and with every subscription taken
 * up after the last event that was seen, so that none is lost and none comes twice. It knows nothing of pages; nothing
 * in it needs `eval`, a framework or another file.
 *
 *     import { HacpClient } from "./hacp.js";
 *
 *     const client = new HacpClient("ws://127.0.0.1:7118", { token });
 *     await client.connect();
 *     const session = await client.openSession({ clientName: "my page" });
 *     session.addEventListener("event", ({ detail }) => console.log(detail.seq, detail.phase, detail.status));
 *     session.addEventListener("gone", () => console.log("open another one"));
 *     const task = await session.submit({ intent: "light", steps: [{ tool: "gpio.set", args: { line: "LED", value: 1 } }] });
 *     console.log(await task.wait());
 *
 * Methods, results and errors are those of docs/reference/methods.md and docs/reference/errors.md, by the same names.
 *
 * @module
 */

/**
 * @typedef {"connecting" | "open" | "waiting" | "closed"} State
 *   "connecting": a link is being built, and what was followed is being taken up again. "open": requests can be made.
 *   "waiting": the link was lost, or did not come about; the next attempt is under way after a pause. "closed": by
 *   `close()`, before `connect()`, or because what answers there does not speak HACP.
 *
 * @typedef {object} StateDetail What a "state" event tells.
 * @property {State} state
 * @property {number} attempt How many attempts have failed in a row.
 * @property {number} [retryInMs] Of "waiting": until the next attempt.
 * @property {string} [reason] Of "waiting" and "closed": why, for a person.
 * @property {boolean} [wasOpen] Of "waiting": whether there has ever been a link. If not, the address, the token or the
 *   page's origin may be wrong: a browser does not let a page know which.
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
 *
 * @typedef {object} TaskRequest What to do: the `task` of task.submit.
 * @property {string} intent
 * @property {Step[]} steps
 * @property {Record<string, unknown>} [constraints]
 * @property {string} [idempotency_key] One is made unless given.
 *
 * @typedef {object} ClientOptions
 * @property {string} [token] A bearer token; it is sent in the handshake, as a subprotocol, never in an address.
 * @property {number} [firstPauseMs] Before the first new attempt; twice as long before each one after it. 250.
 * @property {number} [longestPauseMs] 10 000.
 * @property {number} [openingMs] How long a link may take to come about. 15 000.
 * @property {number} [quietMs] After so long without a word from the server, while one is awaited, it is asked whether
 *   it is still there: a link that drops silently shows in no other way. 15 000.
 * @property {number} [answerMs] How long it may then take to answer before the link counts as lost. 10 000.
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
});

const SESSION_INVALID = -32000;
const TASK_NOT_FOUND = -32001;
const MAX_BATCH = 64;
const SUBPROTOCOL_TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/; // RFC 9110 "token": all that a subprotocol may consist of
const NO_TASK = "0"; // no task is called so: asking for it asks only whether the session is there

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

/** There is no link, or it was lost before the answer came: whether the request was carried out, nobody knows here. */
export class LinkError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "LinkError";
  }
}

/**
 * A link to a daemon that is built anew when it drops.
 *
 * Events: "state" (`detail` is a {@link StateDetail}).
 */
export class HacpClient extends EventTarget {
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
   * @throws {TypeError} An address or a token that cannot be one; the message says why.
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
    this.#url = parsed.href;
    this.#protocols = options.token ? ["hacp.v0", `bearer.${options.token}`] : ["hacp.v0"];
    this.#options = {
      firstPauseMs: 250,
      longestPauseMs: 10_000,
      openingMs: 15_000,
      quietMs: 15_000,
      answerMs: 10_000,
      ...options,
    };
  }

  /** Where to. */
  get url() {
    return this.#url;
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  /**
   * Build the link, and keep it up from now on.
   *
   * @returns {Promise<void>} Resolved when it is up for the first time, however many attempts that takes; rejected with
   *   a LinkError if the client is closed before.
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

  /** Drop the link and stay without one. Sessions that were opened with "keep" live on until they have been idle. */
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
   * @param {string} [options.clientName] Who you are, for the audit log.
   * @param {string} [options.clientVersion]
   * @param {"keep" | "close"} [options.onDisconnect] "keep". With "close" the session ends with the link: its tasks are
   *   cancelled and its outputs go to their safe state.
   * @param {number} [options.heartbeatMs]
   * @returns {Promise<HacpSession>}
   */
  async openSession({ clientName, clientVersion, onDisconnect = "keep", heartbeatMs } = {}) {
    const opened = await this.call("session.open", {
      client_name: clientName,
      client_version: clientVersion,
      protocol_version: "0.1.0",
      on_disconnect: onDisconnect,
      heartbeat_ms: heartbeatMs,
    });
    return this.#keep(new HacpSession(this, opened.session_id, opened.capabilities));
  }

  /**
   * Use a session of the same principal that was opened before, by another page or by another connection.
   *
   * @param {string} sessionId
   * @returns {Promise<HacpSession>}
   * @throws {HacpError} RPC_SESSION_INVALID: it has ended, or was never yours.
   */
  async attach(sessionId) {
    const known = this.#sessions.get(sessionId);
    if (known) return known;
    const session = new HacpSession(this, sessionId, []);
    await session._probe();
    return this.#keep(session);
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
      socket = new WebSocket(this.#url, this.#protocols);
    } catch (error) {
      // A page that came by https may not use ws://, for example: trying again would not help.
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

  /** Take up again what was followed; only then is the link open to others. @param {Link} link */
  async #opened(link) {
    try {
      await Promise.all([...this.#sessions.values()].map((session) => session._resume(link)));
    } catch (error) {
      if (error instanceof LinkError) return; // `lost` has been told as well
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
    // Half of it by chance: a thousand pages that lost one daemon shall not come back in one moment.
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
    this.dispatchEvent(new CustomEvent("state", { detail: { state, attempt: this.#attempt, ...more } }));
  }

  /** @param {string} method @param {any} params */
  #notified(method, params) {
    if (method !== "task.event" || typeof params?.task_id !== "string") return; // a later release's: not for us
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
 * A session: who asks, what is allowed, and the tasks.
 *
 * Events: "event" (`detail` is a {@link TaskEvent}: every event of every task that is followed, each once, in order),
 * "task" (`detail` is a {@link HacpTask} that was not known before), "gone" (the session has ended, and not by
 * `close()`: its tasks are cancelled, its outputs in their safe state; open another one).
 */
export class HacpSession extends EventTarget {
  #client;
  /** @type {Map<string, HacpTask>} */
  #tasks = new Map();
  #following = false;
  #ended = false;

  /** @internal @param {HacpClient} client @param {string} id @param {string[]} capabilities */
  constructor(client, id, capabilities) {
    super();
    this.#client = client;
    this.id = id;
    /** What it may really do; empty for a session that was attached to. */
    this.capabilities = capabilities;
  }

  /** True when it has ended, in whichever way. */
  get ended() {
    return this.#ended;
  }

  /** True while the events of all its tasks are wanted. */
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
   * If the link drops before the answer comes, the submission is repeated as soon as there is one: its idempotency key
   * makes sure that nothing is done twice.
   *
   * @param {TaskRequest} task
   * @returns {Promise<HacpTask>}
   * @throws {HacpError} It was refused, or the session is gone.
   * @throws {LinkError} There was no link to begin with, or the client was closed.
   */
  async submit(task) {
    const params = { task: { idempotency_key: newKey(), ...task }, subscribe: !this.#following };
    if (this.#client.state !== "open") throw new LinkError("task.submit: there is no link to the daemon");
    for (;;) {
      try {
        const { task_id } = await this.call("task.submit", params);
        const submitted = this.task(task_id);
        submitted._followed = true;
        return submitted;
      } catch (error) {
        if (!(error instanceof LinkError)) throw error;
        await this.#client.whenOpen();
        if (this.#ended) throw new HacpError(SESSION_INVALID, `the session is gone, and ${error.message}`);
      }
    }
  }

  /** A task of this session, by its id. @param {string} taskId @returns {HacpTask} */
  task(taskId) {
    const known = this.#tasks.get(taskId);
    if (known) return known;
    const task = new HacpTask(this, taskId);
    this.#tasks.set(taskId, task);
    this.dispatchEvent(new CustomEvent("task", { detail: task }));
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
   * Follow a task from its first event on, or from the one after the last that was seen here; without a link, as soon as
   * there is one.
   *
   * @param {string} taskId
   * @returns {Promise<HacpTask>}
   * @throws {HacpError} The session or the task is not there.
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

  /** Follow a task no more. @param {string} taskId */
  async unsubscribe(taskId) {
    const task = this.#tasks.get(taskId);
    if (task) task._followed = false;
    await this.call("task.events.unsubscribe", { task_id: taskId });
  }

  /**
   * Follow all tasks of the session: those that were, from their first event, and those to come, whoever submits them;
   * without a link, as soon as there is one.
   *
   * @throws {HacpError} The session is not there.
   * @throws {LinkError} The client was closed.
   * @throws {Error} Another session of this client is followed so: give each its own client.
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

  /** Subscribe. If the link drops meanwhile, that has become part of what a new link takes up. @param {object} what */
  async #begin(what) {
    try {
      await this.call("task.events.subscribe", { ...what });
    } catch (error) {
      if (!(error instanceof LinkError)) throw error;
      await this.#client.whenOpen();
      if (this.#ended) throw new HacpError(SESSION_INVALID, "the session is gone");
    }
  }

  /** Follow no task any more. */
  async unfollow() {
    this.#following = false;
    for (const task of this.#tasks.values()) task._followed = false;
    await this.call("task.events.unsubscribe");
  }

  /** The tools that it may use (tool.list). @returns {Promise<Record<string, any>[]>} */
  async tools() {
    return (await this.call("tool.list")).tools;
  }

  /** End it (session.close): its tasks are cancelled, its outputs go to their safe state. */
  async close() {
    const answer = await this.call("session.close");
    this.#finish(new HacpError(SESSION_INVALID, "the session was closed"));
    return answer;
  }

  // --- for the client -------------------------------------------------------------------------------------------

  /** @internal Whether events are awaited. */
  get _listening() {
    return this.#following || [...this.#tasks.values()].some((task) => task._followed && !task.finished);
  }

  /** @internal Ask for nothing but whether the session is there. Raises RPC_SESSION_INVALID if not. */
  async _probe(link = /** @type {{call: HacpClient["call"]}} */ (this.#client)) {
    try {
      await link.call("task.get", { session_id: this.id, task_id: NO_TASK });
    } catch (error) {
      if (!(error instanceof HacpError) || error.code === SESSION_INVALID) throw error;
    }
  }

  /** @internal Over a new link: follow what was followed, each from after the last event that was seen. @param {Link} link */
  async _resume(link) {
    /** @type {[string, Record<string, unknown>][]} */
    const wanted = [];
    // The whole session first: it would begin each history anew. In one batch, so that no history is sent in between.
    if (this.#following) wanted.push(["task.events.subscribe", { session_id: this.id }]);
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
    task.dispatchEvent(new CustomEvent("event", { detail: event }));
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
  }

  /** @internal The server does not know it any more. */
  _end() {
    if (this.#ended) return;
    this.#finish(new HacpError(SESSION_INVALID, "the session is gone"));
    this.dispatchEvent(new CustomEvent("gone"));
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
 */
export class HacpTask extends EventTarget {
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

  /** How many progress events were left out, because newer ones had come when it was their turn. */
  get coalesced() {
    return this.#coalesced;
  }

  /** True when nothing more will come of it. */
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
   * Its last event, `task_finish`, when that has come; a task that failed or was cancelled has one, too.
   *
   * @returns {Promise<TaskEvent>}
   * @throws {HacpError} The session ended first, or has forgotten the task.
   */
  wait() {
    if (this.#last) return Promise.resolve(this.#last);
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  /** @internal Whether the event is new. @param {TaskEvent} event */
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
 * One connection, from its handshake to its end: requests out, answers and notifications in.
 *
 * @typedef {object} Hooks
 * @property {() => number} nextId
 * @property {() => void} opened The handshake is done.
 * @property {() => void} heard The server has sent something that makes sense.
 * @property {(method: string, params: any) => void} notified
 * @property {(params: Record<string, unknown>) => void} refused A request's session does not exist.
 * @property {() => void} quiet Nothing has been heard for long: ask something.
 * @property {(reason: string) => void} lost
 * @property {(reason: string) => void} nonsense What is there does not speak HACP.
 */
class Link {
  #socket;
  #hooks;
  #options;
  /** @type {Map<number, {resolve: (result: any) => void, reject: (error: Error) => void, method: string, params: Record<string, unknown>, at: number}>} */
  #pending = new Map();
  #heardAt = performance.now();
  #over = false;
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
    this.#opening = setTimeout(() => this.#fail("it took too long to come about"), options.openingMs);
    socket.onopen = () => {
      this.#isUp = true;
      this.#heardAt = performance.now();
      hooks.opened();
    };
    socket.onmessage = (message) => this.#receive(message.data);
    socket.onclose = (event) => {
      const code = event.code && event.code !== 1006 ? ` (${event.code})` : ""; // 1006: there was no code
      const how = event.wasClean ? "the daemon ended the link" : this.#isUp ? "the link broke" : "nobody let us in";
      this.#fail((event.reason || how) + code);
    };
  }

  /** It is of use: from now on it is watched for silence. */
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

  /** Requests as one batch; their answers. @param {[string, Record<string, unknown>][]} calls @returns {Promise<any>[]} */
  batch(calls) {
    const prepared = calls.map(([method, params]) => this.#prepare(method, params));
    this.#send(prepared.map(({ request }) => request));
    return prepared.map(({ answer }) => answer);
  }

  /** Close it, and fail what waits. @param {string} reason */
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
      else this.#pending.set(id, { resolve, reject, method, params, at: performance.now() });
    });
    return { request: { jsonrpc: "2.0", id, method, params }, answer };
  }

  /** @param {unknown} document */
  #send(document) {
    if (!this.#over) this.#socket.send(JSON.stringify(document));
  }

  /** @param {unknown} data */
  #receive(data) {
    let document;
    try {
      if (typeof data !== "string") throw new SyntaxError("not text");
      document = JSON.parse(data);
    } catch {
      this.#hooks.nonsense("what answers at this address does not speak HACP: it sent what is no JSON");
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
    const oldest = Math.min(...[...this.#pending.values()].map(({ at }) => at)); // Infinity where nothing is pending
    if (now - oldest > this.#options.answerMs && quiet > this.#options.answerMs) {
      this.#fail("the daemon has not answered for too long");
    } else if (quiet > this.#options.quietMs && !this.#pending.size) {
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

/** 128 random bits; `crypto.randomUUID` is there only for pages that came by https or from this machine. */
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
