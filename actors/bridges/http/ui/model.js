/**
 * What the page knows: the daemon's state as the events of its stream add up to it, and what it has seen of the past.
 *
 * Pure: no page, no connection. `Model.apply` takes each event once; what changed since the last `take` is in `dirty`.
 * Memory is bounded: the newest points of each series, the newest changes of each line, the newest records.
 */

export const POINTS = 2400;
export const MOST_SERIES = 64;
export const CHANGES = 240;
export const SIGNAL_CHANGES = 600; // a minute of a signal that moves: it is sampled ten times a second
export const MOST_ENDED = 50;
export const MOST_RECORDS = 2000;

/** The newest points of one quantity, in two arrays of fixed size. */
export class Series {
  #times = new Float64Array(POINTS);
  #values = new Float64Array(POINTS);
  #next = 0;
  length = 0;

  constructor(name, label) {
    this.name = name;
    this.label = label;
  }

  add(time, value) {
    this.#times[this.#next] = time;
    this.#values[this.#next] = value;
    this.#next = (this.#next + 1) % POINTS;
    this.length = Math.min(this.length + 1, POINTS);
  }

  get last() {
    return this.length ? this.#values[(this.#next + POINTS - 1) % POINTS] : null;
  }

  /** Times (in seconds) and values since a time, as two arrays. */
  since(time) {
    const times = [];
    const values = [];
    for (let index = 0; index < this.length; index += 1) {
      const at = (this.#next + POINTS - this.length + index) % POINTS;
      if (this.#times[at] >= time) {
        times.push(this.#times[at]);
        values.push(this.#values[at]);
      }
    }
    return [times, values];
  }
}

export class Model {
  /** The members of observe.state, or null before the first snapshot. */
  state = null;
  /** The last event, for the next session: { stream, seq }. */
  last = null;
  /** @type {Map<string, Series>} */
  series = new Map();
  /** By line or signal ("bus/number"): the changes of its level that were seen, as [seconds, level]. */
  changes = new Map();
  /** Tasks that have ended, the newest first. */
  ended = [];
  /** Audit records that were seen or read, by their time; those of the stream have no `seq`. */
  records = [];
  /** What has changed since `take`: kinds of events. */
  dirty = new Set();
  /** What a snapshot replaced: a sentence for a person, or null. */
  missed = null;
  /** Seconds by which this machine's clock is ahead of the daemon's. */
  skew = 0;

  /** Return what has changed, and forget it. */
  take() {
    const dirty = this.dirty;
    this.dirty = new Set();
    return dirty;
  }

  /** The daemon's time now, in seconds. */
  now() {
    return Date.now() / 1000 - this.skew;
  }

  apply(event) {
    const at = Date.parse(event.ts) / 1000;
    const { kind } = event;
    this.skew = Date.now() / 1000 - at;
    if (kind === "snapshot") this.#snapshot(event, at);
    else if (!this.state) return;
    else if (kind === "lines") event.lines.forEach((line) => this.#output(this.state.lines, line, at));
    else if (kind === "signals") event.signals.forEach((signal) => this.#output(this.state.signals, signal, at));
    else if (kind === "named") event.named.forEach((signal) => Object.assign(this.state.named.find((one) => outputKey(one) === outputKey(signal)) ?? {}, signal));
    else if (kind === "buses") Object.assign(this.state.buses, event.buses);
    else if (kind === "halt" || kind === "approvals" || kind === "health") this.state[kind] = event[kind];
    else if (kind === "readings") event.readings.forEach((reading) => this.#addPoints(reading, Date.parse(reading.ts) / 1000));
    else if (kind === "records") this.#addRecords(event.records);
    this.last = { stream: event.stream, seq: event.seq };
    this.dirty.add(kind);
  }

  #snapshot({ stream, state, missed }, at) {
    const before = this.last;
    if (before && before.stream !== stream) this.missed = "The daemon, or its stream, has begun anew: what happened in between is not known here.";
    else if (missed) this.missed = `${missed} events were missed: this page was too slow, or away for too long.`;
    // A daemon of an earlier release has no signals, or none by name.
    this.state = { ...state, signals: state.signals ?? [], named: state.named ?? [], buses: { ...state.buses } };
    for (const output of [...this.state.lines, ...this.state.signals]) this.#noteLevel(output, at);
    for (const reading of state.readings) this.#addPoints(reading, Date.parse(reading.ts) / 1000);
  }

  #output(outputs, change, at) {
    const key = outputKey(change);
    const output = outputs.find((one) => outputKey(one) === key);
    if (!output) return;
    Object.assign(output, change);
    this.#noteLevel(output, at);
  }

  #noteLevel(output, at) {
    const key = outputKey(output);
    let changes = this.changes.get(key);
    if (!changes) this.changes.set(key, (changes = []));
    if (changes.length && changes[changes.length - 1][1] === output.value) return;
    changes.push([at, output.value]);
    const most = output.channel === undefined ? CHANGES : SIGNAL_CHANGES;
    if (changes.length > most) changes.splice(0, changes.length - most);
  }

  #addPoints({ tool, args, values }, at) {
    if ("line" in args || "channel" in args || "servo" in args) return; // these are shown as lines and signals
    const of = Object.values(args).join(" ") || tool;
    for (const [name, value] of Object.entries(values)) {
      const key = `${tool} ${of} ${name}`;
      let series = this.series.get(key);
      if (!series) {
        if (this.series.size >= MOST_SERIES) continue;
        this.series.set(key, (series = new Series(key, name === "value" ? of : `${of} ${name}`)));
      }
      series.add(at, Number(value));
    }
  }

  #addRecords(records) {
    for (const record of records) this.#record(record);
    this.records.push(...records);
    if (this.records.length > MOST_RECORDS) this.records.splice(0, this.records.length - MOST_RECORDS);
  }

  #record(record) {
    const { state } = this;
    const { ts } = record;
    const task = record.task_id && state.tasks.find((one) => one.task_id === record.task_id);
    const without = (items, key) => items.filter((one) => one[key] !== record[key]);
    if (record.event === "session.open") {
      const { session_id, principal, policy, client_name = null } = record;
      state.sessions = [...without(state.sessions, "session_id"), { session_id, principal, policy, client_name, opened_at: ts }];
    } else if (record.event === "session.close") {
      state.sessions = without(state.sessions, "session_id");
    } else if (record.event === "task.submit") {
      const { task_id, session_id, principal, intent, dry_run } = record;
      const steps = record.steps.map(({ tool, args = {} }) => ({ tool, args, status: null }));
      const begun = { task_id, session_id, principal, intent, submitted_at: ts, status: "QUEUED", dry_run, steps };
      state.tasks = [...without(state.tasks, "task_id"), begun];
    } else if (record.event === "task.step.start" && task) {
      task.status = "RUNNING";
      task.steps[record.step_index].status = "RUNNING";
    } else if (record.event === "task.step.finish" && task) {
      Object.assign(task.steps[record.step_index], { status: record.status, latency_ms: record.latency_ms });
    } else if (record.event === "task.finish") {
      state.tasks = without(state.tasks, "task_id");
      if (task) {
        this.#end(task, record, ts);
      }
    }
  }

  /** Put a task among the ended ones; one that is as an earlier one was takes its place, and is counted. */
  #end(task, { status, duration_ms, reason }, ts) {
    const key = JSON.stringify([task.principal, task.intent, status, task.steps.map(({ tool, args }) => [tool, args])]);
    const before = this.ended.find((one) => one.key === key);
    const ended = { ...task, key, status, duration_ms, reason, ended_at: ts, times: (before?.times ?? 0) + 1 };
    this.ended = [ended, ...this.ended.filter((one) => one !== before)].slice(0, MOST_ENDED);
  }

  /** Put records of the log that are older than those seen before them. */
  addOlder(records) {
    const oldest = this.records.length ? Date.parse(this.records[0].ts) : Infinity;
    this.records = [...records.filter((record) => Date.parse(record.ts) < oldest), ...this.records];
    this.dirty.add("records");
  }

  /** Forget everything: another person has signed in. */
  clear() {
    Object.assign(this, { state: null, last: null, series: new Map(), changes: new Map(), ended: [], records: [], missed: null });
  }
}

/** What tells a line or a signal from all others: its bus, and its number or name there. */
export function outputKey(output) {
  return `${output.bus}/${output.line ?? output.channel ?? output.name}`;
}

/** The name by which people know a line: what is wired to it, or else its own. */
export function lineName(line) {
  return line.aliases.find((alias) => !/^PIN\d+$/.test(alias)) ?? line.name;
}

const READS = /^(hw|sys)\.|\.(read|get|list|scan|watch|stat)$/;

/** True for the record of a task that only reads, by the names of its tools. */
export function onlyReads(record) {
  return Array.isArray(record.steps) && record.steps.every((step) => READS.test(step.tool ?? step));
}

/** One sentence about a series of values. */
export function summary(label, values, format) {
  if (!values.length) return `${label}: no value in this time.`;
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  return `${label}: ${format(values[values.length - 1])} now, between ${format(low)} and ${format(high)} in this time.`;
}
