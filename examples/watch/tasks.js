/**
 * One task as a card: its intent, its steps and what becomes of them, while it happens.
 *
 * It is a fold over the task's events, and nothing else: replayed after a reload, they make the same card.
 */

import { argWords, progressWords, resultWords, seconds } from "./words.js";

const MARKS = { WAITING: "·", RUNNING: "▸", SUCCESS: "✓", FAILED: "✕", CANCELLED: "–" };
const WORDS = { QUEUED: "Queued", RUNNING: "Running", SUCCESS: "Success", FAILED: "Failed", CANCELLED: "Cancelled" };
const SVG = "http://www.w3.org/2000/svg";
const WINDOW_MS = 12_000;

/** How far this machine's clock is ahead of the daemon's, as far as can be told: the quickest event that has come. */
let ahead = Infinity;
const serverNow = () => Date.now() - (Number.isFinite(ahead) ? ahead : 0);

export class TaskCard {
  #status = "QUEUED";
  #name;
  #described = false;
  /** @type {StepRow[]} */
  #rows = [];
  #startedAt = 0;
  #endedAt = 0;
  /** Until when we know what became of it: while there is no link, time stands still. */
  #seen = 0;
  #title = element("h3", "");
  #badge = element("span", "badge");
  #meta = element("span", "meta");
  #bar = /** @type {HTMLProgressElement} */ (element("progress", ""));
  #steps = element("ol", "steps");
  #why = element("p", "error");
  #cancel = /** @type {HTMLButtonElement} */ (element("button", "quiet small"));

  /** @param {string} id @param {() => void} onCancel */
  constructor(id, onCancel) {
    this.id = id;
    this.#name = `task …${id.slice(-4)}`;
    this.element = element("article", "card task");
    this.element.dataset.task = id;
    this.element.setAttribute("role", "listitem");
    this.#cancel.type = "button";
    this.#cancel.textContent = "Cancel";
    this.#cancel.addEventListener("click", onCancel);
    const header = element("header", "");
    header.append(this.#title, this.#badge, this.#meta, this.#cancel);
    this.element.append(header, this.#bar, this.#why, this.#steps);
    this.#show();
  }

  /** What it is called among the events. */
  get name() {
    return this.#name;
  }

  get described() {
    return this.#described;
  }

  /** True until it has ended. */
  get live() {
    return this.#status === "QUEUED" || this.#status === "RUNNING" || this.#status === "CANCELLING";
  }

  /** What it was submitted as. @param {{intent: string, steps: {tool: string, args?: Record<string, any>}[]}} plan @param {string} [name] */
  describe(plan, name) {
    this.#described = true;
    if (name) this.#name = name;
    this.#title.textContent = plan.intent;
    this.#cancel.setAttribute("aria-label", `Cancel: ${plan.intent}`);
    this.#bar.setAttribute("aria-label", `Steps done: ${plan.intent}`);
    plan.steps.forEach((step, index) => this.#row(index).describe(step));
    if (!this.live) this.#leaveOut();
    this.#show();
  }

  /** @param {import("./hacp.js").TaskEvent} event */
  take(event) {
    const at = Date.parse(event.ts);
    ahead = Math.min(ahead, Date.now() - at);
    this.#seen = Math.max(this.#seen, at);
    if (event.phase === "task_finish") {
      this.#status = event.status ?? "FAILED";
      this.#endedAt = at;
      const why = [event.reason, event.error].filter((words) => words && words !== this.#status.toLowerCase());
      this.#why.textContent = why.join(": ");
      this.#leaveOut();
    } else {
      this.#startedAt ||= at;
      if (this.#status === "QUEUED") this.#status = "RUNNING";
      this.#row(event.step_index ?? 0).take(event, at);
    }
    this.#show();
  }

  /** Its cancellation was asked for. */
  cancelling() {
    if (this.live) this.#status = "CANCELLING";
    this.#show();
  }

  /** task.get of one that did not succeed: what was taken back, if that event was coalesced. @param {any} found */
  settle(found) {
    /** @type {any[]} */ (found.steps ?? []).forEach((step, index) => {
      if (typeof step.rolled_back === "boolean") this.#row(index).rolledBack(step.rolled_back);
    });
  }

  /** Its session has ended, and nobody will tell what became of it. */
  gone() {
    if (!this.live) return;
    this.#status = "GONE";
    this.#endedAt = this.#seen;
    this.#why.textContent = "It ended with its session; the audit log knows how.";
    for (const row of this.#rows) row.stop(this.#seen);
    this.#show();
  }

  /** Time has passed, and there is a link. */
  tick() {
    if (!this.live) return;
    this.#seen = serverNow();
    this.#showTime();
    for (const row of this.#rows) row.tick();
  }

  /** @param {boolean} usable Whether the daemon can be asked for anything. */
  enable(usable) {
    this.#cancel.disabled = !usable || this.#status === "CANCELLING";
  }

  /** @param {number} index */
  #row(index) {
    while (this.#rows.length <= index) {
      const row = new StepRow();
      this.#rows.push(row);
      this.#steps.append(row.element);
    }
    return this.#rows[index];
  }

  #leaveOut() {
    for (const row of this.#rows) row.stop(this.#endedAt, "not run");
  }

  #show() {
    this.element.dataset.status = this.#badge.dataset.status = this.#status;
    this.#badge.textContent =
      { CANCELLING: "Cancelling…", GONE: "Gone" }[this.#status] ?? WORDS[/** @type {keyof WORDS} */ (this.#status)] ?? this.#status;
    this.#bar.hidden = this.#rows.length < 2; // one step has a bar of its own
    this.#bar.max = Math.max(1, this.#rows.length);
    this.#bar.value = this.#rows.filter((row) => row.done).length;
    this.#cancel.hidden = !this.live;
    this.#cancel.disabled ||= this.#status === "CANCELLING";
    this.#showTime();
  }

  #showTime() {
    const done = this.#rows.filter((row) => row.done).length;
    const steps = this.#described && this.#rows.length > 1 ? `${done} of ${this.#rows.length} steps` : "";
    const until = this.live ? this.#seen : this.#endedAt;
    const took = this.#startedAt ? seconds(Math.max(0, until - this.#startedAt)) : "";
    this.#meta.textContent = [steps, took].filter(Boolean).join(" · ");
  }
}

class StepRow {
  #status = "WAITING";
  /** @type {{tool: string, args?: Record<string, any>}} */
  #step = { tool: "…" };
  #startedAt = 0;
  #endedAt = 0;
  /** @type {{at: number, value: number}[]} */
  #edges = [];
  /** @type {boolean | null} */
  #rolledBack = null;
  #words = "";
  /** Milliseconds from the device's clock, which stamps edges, to the daemon's. */
  #offset = 0;
  #mark = element("span", "mark");
  #tool = element("span", "mono");
  #args = element("span", "args");
  #took = element("span", "took");
  #outcome = element("p", "outcome");
  /** @type {HTMLProgressElement | null} */
  #bar = null;
  /** @type {Wave | null} */
  #wave = null;

  constructor() {
    this.element = element("li", "step");
    const what = element("div", "what");
    what.append(this.#tool, this.#args);
    this.#mark.setAttribute("role", "img");
    this.element.append(this.#mark, what, this.#took, this.#outcome);
    this.#show();
  }

  get done() {
    return this.#status === "SUCCESS" || this.#status === "FAILED";
  }

  /** @param {{tool: string, args?: Record<string, any>}} step */
  describe(step) {
    this.#step = step;
    this.#show();
  }

  /** @param {import("./hacp.js").TaskEvent} event @param {number} at */
  take(event, at) {
    if (event.tool) this.#step = { ...this.#step, tool: event.tool };
    if (event.phase === "start") {
      this.#status = "RUNNING";
      this.#startedAt = at;
    } else if (event.phase === "progress" && event.rolled_back !== undefined) {
      this.#rolledBack = event.rolled_back;
    } else if (event.phase === "progress") {
      this.#progress(event.data ?? {}, at);
    } else {
      this.#status = event.status ?? "SUCCESS";
      this.#endedAt = at;
      if (event.latency_ms !== undefined) this.#took.textContent = latency(event.latency_ms);
      this.#words = event.error ?? (event.result ? resultWords(this.#step.tool, event.result) : "");
    }
    this.#show();
  }

  /** @param {boolean} done */
  rolledBack(done) {
    this.#rolledBack = done;
    this.#show();
  }

  /** Nothing more comes of it. @param {number} at @param {string} [why] */
  stop(at, why = "") {
    if (this.#status === "WAITING" || this.#status === "RUNNING") {
      this.#took.textContent = why;
      this.#status = "CANCELLED";
      this.#endedAt = at;
    }
    this.#show();
  }

  tick() {
    if (this.#status === "RUNNING") this.#showLive();
  }

  /** @param {Record<string, any>} data @param {number} at */
  #progress(data, at) {
    if (typeof data.timestamp_ns === "number" && (data.value === 0 || data.value === 1)) {
      if (!this.#edges.length) this.#offset = at - data.timestamp_ns / 1e6;
      this.#edges.push({ at: data.timestamp_ns / 1e6 + this.#offset, value: data.value });
    }
    this.#words = progressWords(data);
  }

  #show() {
    const status = this.#status;
    this.element.dataset.status = status;
    this.#mark.textContent = MARKS[/** @type {keyof MARKS} */ (status)] ?? "?";
    this.#mark.setAttribute("aria-label", status.toLowerCase());
    this.#tool.textContent = this.#step.tool;
    const back = this.#rolledBack === null ? "" : this.#rolledBack ? "taken back" : "could not be taken back";
    this.#outcome.textContent = [this.#words, back].filter(Boolean).join("; ");
    this.#args.textContent = this.#step.args ? argWords(this.#step.tool, this.#step.args) : "";
    this.#showLive();
  }

  /** What moves: time, where it is known how long it takes, and the levels of a line that is watched. */
  #showLive() {
    const { duration_ms: duration, timeout_ms: timeout } = this.#step.args ?? {};
    const whole = Number(duration ?? timeout ?? 0);
    const running = this.#status === "RUNNING";
    if (running && whole && !this.#bar) {
      this.#bar = /** @type {HTMLProgressElement} */ (element("progress", ""));
      this.#bar.max = whole;
      this.#bar.setAttribute("aria-label", `${this.#step.tool}: time`);
      this.element.append(this.#bar);
    }
    if (!running) {
      this.#bar?.remove();
      this.#bar = null;
    } else if (this.#bar) {
      const passed = Math.min(whole, Math.max(0, serverNow() - this.#startedAt));
      this.#bar.value = passed;
      this.#took.textContent = `${(passed / 1000).toFixed(1)} of ${seconds(whole)}`;
    }
    if (this.#edges.length) {
      if (!this.#wave) {
        this.#wave = new Wave();
        this.element.append(this.#wave.element);
      }
      const until = running ? serverNow() : this.#endedAt;
      this.#wave.draw(this.#edges, this.#startedAt, until, running);
    }
  }
}

/** The level of a line over time, as a logic analyser draws it. */
class Wave {
  #line = document.createElementNS(SVG, "path");
  #fill = document.createElementNS(SVG, "path");

  constructor() {
    this.element = document.createElementNS(SVG, "svg");
    this.element.setAttribute("class", "wave");
    this.element.setAttribute("viewBox", "0 0 1000 100");
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("role", "img");
    this.#fill.setAttribute("class", "fill");
    this.element.append(this.#fill, this.#line);
  }

  /** @param {{at: number, value: number}[]} edges @param {number} from @param {number} until @param {boolean} grows */
  draw(edges, from, until, grows) {
    const last = Math.max(until, edges[edges.length - 1].at);
    const width = Math.max(1, grows ? Math.max(WINDOW_MS, last - from) : last - from);
    const x = (/** @type {number} */ at) => ((Math.max(from, at) - from) / width) * 1000;
    const y = (/** @type {number} */ value) => (value ? 12 : 92);
    let path = `M0 ${y(1 - edges[0].value)}`;
    for (const { at, value } of edges) path += `H${x(at).toFixed(1)}V${y(value)}`;
    path += `H${x(last).toFixed(1)}`;
    this.#line.setAttribute("d", path);
    this.#fill.setAttribute("d", `${path}V100H0Z`);
    const levels = edges.map(({ value }) => (value ? "high" : "low")).join(", ");
    this.element.setAttribute("aria-label", `${edges.length} changes of level: ${levels}`);
  }
}

/** @param {number} ms */
function latency(ms) {
  return ms < 10 ? `${ms.toFixed(2)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** @param {string} tag @param {string} kind @returns {HTMLElement} */
function element(tag, kind) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  return made;
}
