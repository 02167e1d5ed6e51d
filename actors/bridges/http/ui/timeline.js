/** The view over time: what was measured, and beside it what was done, from the audit log and the live stream. */

import { args, clock, list, make, show, table, who } from "./dom.js";
import { onlyReads } from "./model.js";
import { Plot, colour } from "./plots.js";

const MOST_PLOTS = 6;
const SHOWN = 200;
const QUIET = /^(session\.|audit\.|task\.step\.|daemon\.checkpoint)/;

export class Timeline {
  #oldest = null;
  #began = false;

  constructor(root, { model, session, fail }) {
    Object.assign(this, { model, session, fail, minutes: 5 });
    const choose = make("select", { id: "minutes", onchange: () => ((this.minutes = Number(choose.value)), this.render(null)) }, ...[1, 5, 15, 60].map((one) => make("option", { value: one, selected: one === 5 }, `${one} min`)));
    this.plots = make("div", { class: "plots wide" });
    this.none = make("p", { class: "soft" }, "No sensor has been read since this page was opened; the records below go further back.");
    const records = table("Records", "Time", "What", "Who", "Details");
    this.rows = records.body;
    this.older = make("button", { type: "button", onclick: () => void this.#read() }, "Older records");
    this.reads = make("input", { type: "checkbox", id: "with-reads", onchange: () => this.render(null) });
    const filter = make("p", { class: "filter" }, this.reads, make("label", { for: "with-reads" }, " With tasks that only read"));
    const legend = make("p", { class: "legend" }, mark("task"), "task that acts", mark("approval"), "approval", mark("halt"), "halt");
    root.append(make("h1", { id: "timeline-title" }, "Timeline"), make("p", {}, make("label", { for: "minutes" }, "Show the last "), choose), legend, this.none, this.plots, make("h2", {}, "Records"), filter, records.element, this.older);
  }

  render(dirty) {
    const now = this.model.now();
    const from = now - this.minutes * 60;
    const series = [...this.model.series.values()].slice(0, MOST_PLOTS);
    show(this.none, series.length === 0);
    this.marked = marks(this.model.records, from);
    const create = (one) => {
      const plot = new Plot(one.label, (drawn) => this.#draw(drawn));
      plot.element._plot = plot;
      return plot.element;
    };
    list(this.plots, series, (one) => one.name, create, (figure, one) => figure._plot.draw(one, from, now));
    if (!this.#began) {
      this.#began = true;
      void this.#read();
    }
    if (dirty && !dirty.has("records") && !dirty.has("snapshot")) return;
    const reads = new Set(this.reads.checked ? [] : this.model.records.filter(onlyReads).map((record) => record.task_id));
    const told = (record) => !QUIET.test(record.event) && !(record.task_id && reads.has(record.task_id));
    const shown = this.model.records.filter(told).slice(-SHOWN).reverse();
    list(this.rows, shown, keyOf, createRow, () => undefined);
  }

  async #read() {
    const before = this.#oldest;
    this.older.disabled = true;
    try {
      const fromSeq = before === null ? undefined : Math.max(1, before - 500);
      if (before !== null && before <= 1) return;
      const limit = before === null ? 500 : before - fromSeq;
      const answer = await this.session().observeAudit({ fromSeq, limit });
      if (answer.records.length) this.#oldest = answer.records[0].seq;
      this.model.addOlder(answer.records);
      show(this.older, this.#oldest !== null && this.#oldest > answer.first_seq);
    } catch (error) {
      this.fail("The audit log could not be read", error);
    } finally {
      this.older.disabled = false;
    }
  }

  #draw(plot) {
    const { ctx: context, bbox } = plot;
    context.save();
    for (const { kind, from, to } of this.marked) {
      const left = Math.max(bbox.left, plot.valToPos(from, "x", true));
      const right = Math.min(bbox.left + bbox.width, plot.valToPos(to, "x", true));
      if (right < bbox.left || left > bbox.left + bbox.width) continue;
      context.fillStyle = colour(`--mark-${kind}`);
      context.fillRect(left, bbox.top, Math.max(2, right - left), bbox.height);
    }
    context.restore();
  }
}

function mark(kind) {
  return make("span", { class: `mark ${kind}`, "aria-hidden": "true" });
}

/** Spans of time with what happened in them: { kind, from, to }, in seconds. */
export function marks(records, since) {
  const found = [];
  const tasks = new Map();
  let halt = null;
  for (const record of records) {
    const at = Date.parse(record.ts) / 1000;
    if (record.event === "task.submit") tasks.set(record.task_id, onlyReads(record) ? null : at);
    else if (record.event === "task.finish") {
      const begun = tasks.get(record.task_id);
      if (begun !== null) found.push({ kind: "task", from: begun ?? at, to: at });
    }
    else if (/^plan\.(approve|reject|execute)$|^hcp\.(approve|deny)$/.test(record.event)) found.push({ kind: "approval", from: at, to: at });
    else if (record.event === "halt") halt ??= at;
    else if (record.event === "halt.reset" && !record.halted && halt !== null) {
      found.push({ kind: "halt", from: halt, to: at });
      halt = null;
    }
  }
  if (halt !== null) found.push({ kind: "halt", from: halt, to: Infinity });
  return found.filter((one) => one.to >= since);
}

const keys = new WeakMap();
let lastKey = 0;

function keyOf(record) {
  if (!keys.has(record)) keys.set(record, ++lastKey);
  return keys.get(record);
}

function createRow(record) {
  const { ts, event, principal, by, ...rest } = record;
  const cells = [make("td", {}, clock(ts)), make("th", { scope: "row" }, event), make("td", {}, who(by ?? principal ?? "")), make("td", { class: "soft" }, details(rest))];
  const row = make("tr", { class: /^halt|^limit|^interlock|wedged/.test(event) ? "bad" : null }, ...cells);
  return row;
}

function details({ seq, prev, hash, session_id, task_id, steps, ...rest }) {
  const told = Object.entries(rest).filter(([, value]) => value !== null && typeof value !== "object");
  const tools = Array.isArray(steps) ? steps.map((step) => (typeof step === "string" ? step : `${step.tool} ${args(step.args)}`.trim())).join(", ") : "";
  return [tools, args(Object.fromEntries(told))].filter(Boolean).join(" · ");
}
