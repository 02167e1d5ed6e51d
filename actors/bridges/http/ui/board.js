/** The view of the hardware: every line, every output that takes a number, every signal of any kind, every bus, and what sensors measure. */

import { clock, figure, list, make, say, show, table, who } from "./dom.js";
import { lineName, outputKey } from "./model.js";
import { Plot, drawLevel } from "./plots.js";

const WINDOW = 60;
const CHANGES_SHOWN = 20;
const MANY_LINES = 12;

export class Board {
  constructor(root, { model }) {
    this.model = model;
    this.title = make("h1", { id: "board-title" }, "Board");
    this.about = make("p", { class: "soft" });
    const lines = table("Lines", "Line", "Number", "Level", "Last minute", "Set by", "Safe state", "Limits and use");
    this.lines = lines.body;
    const many = model.state.lines.length > MANY_LINES;
    this.onlyUsed = make("input", { type: "checkbox", id: "only-used", checked: many, onchange: () => this.render(null) });
    const filter = make("p", { class: "filter" }, this.onlyUsed, make("label", { for: "only-used" }, " Only lines in use"));
    this.lineChanges = new Changes("line", "Level", lineName, (_, level) => levelText(level));
    const signals = table("Signals", "Signal", "Number", "Value", "Last minute", "Set by", "Safe state", "Limits and use");
    this.signals = signals.body;
    this.signalChanges = new Changes("signal", "Value", ({ name }) => name, valueText);
    this.signalParts = make("div", { id: "signals" }, make("h2", {}, "Signals"), signals.element, this.signalChanges.element);
    const named = table("All signals", "Signal", "Bus", "Value", "Quality", "Safe state", "Limits", "Set by", "After a halt");
    this.named = named.body;
    this.namedParts = make("div", { id: "named" }, make("h2", {}, "All signals"), named.element);
    const buses = table("Buses", "Bus", "State", "Waiting", "Transactions");
    this.buses = buses.body;
    this.plots = make("div", { class: "plots" });
    this.none = make("p", { class: "soft" }, "No sensor has been read since this page was opened.");
    root.append(
      this.title, this.about,
      make("h2", {}, "Measured"), this.none, this.plots,
      make("h2", {}, "Lines"), filter, lines.element, this.lineChanges.element,
      this.signalParts,
      this.namedParts,
      make("h2", {}, "Buses"), buses.element,
    );
  }

  /** Bring the view up to date; `dirty` names the kinds of events since the last time, null: all. */
  render(dirty) {
    const { state, series, changes } = this.model;
    const now = this.model.now();
    say(this.title, state.board.name);
    say(this.about, state.board.description);
    const shown = state.lines.filter((line) => !this.onlyUsed.checked || line.owner || line.role || line.limit || (changes.get(outputKey(line))?.length ?? 0) > 1 || line.value === 1);
    list(this.lines, shown, outputKey, createLine, (row, line) => updateLine(row, line, changes.get(outputKey(line)) ?? [], now));
    list(this.signals, state.signals, outputKey, createLine, (row, signal) => updateSignal(row, signal, changes.get(outputKey(signal)) ?? [], now));
    show(this.signalParts, state.signals.length > 0);
    if (!dirty || dirty.has("named") || dirty.has("snapshot")) list(this.named, state.named, outputKey, createNamed, updateNamed);
    show(this.namedParts, state.named.length > 0);
    this.lineChanges.render(state.lines, changes, now);
    this.signalChanges.render(state.signals, changes, now);
    const buses = Object.entries(state.buses);
    if (!dirty || dirty.has("buses") || dirty.has("snapshot")) list(this.buses, buses, ([id]) => id, createBus, updateBus);
    show(this.none, series.size === 0);
    list(this.plots, [...series.values()], (one) => one.name, createPlot, (figure, one) => figure._plot.draw(one, now - WINDOW, now));
  }
}

/** The newest changes of lines or signals as a table, for those who do not see the plots. */
class Changes {
  #shown = "";

  constructor(what, value, name, text) {
    this.name = name;
    this.text = text;
    const { element, body } = table(`Changes of ${what}s in the last minute`, "Time", what[0].toUpperCase() + what.slice(1), value);
    this.body = body;
    this.element = make("details", {}, make("summary", {}, `Changes of ${what}s as a table`), element);
  }

  render(outputs, changes, now) {
    if (!this.element.open) return;
    const rows = [];
    for (const output of outputs) {
      for (const [at, level] of changes.get(outputKey(output)) ?? []) {
        if (at > now - WINDOW) rows.push({ at, output, level });
      }
    }
    rows.sort((one, other) => other.at - one.at);
    const cells = rows.slice(0, CHANGES_SHOWN).map(({ at, output, level }) => [clock(at * 1000), this.name(output), this.text(output, level)]);
    const text = JSON.stringify(cells);
    if (this.#shown === text) return;
    this.#shown = text;
    this.body.replaceChildren(...cells.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell)))));
  }
}

function createPlot(series) {
  const plot = new Plot(series.label);
  plot.element._plot = plot;
  return plot.element;
}

function levelText(level) {
  return level === null ? "not known" : String(level);
}

function createLine() {
  const cells = ["name", "number", "level", "wave", "owner", "safe", "limit"].map((name) => {
    const cell = make(name === "name" ? "th" : "td", name === "name" ? { scope: "row" } : { class: name });
    return [name, cell];
  });
  const row = make("tr", {}, ...cells.map(([, cell]) => cell));
  row._cells = Object.fromEntries(cells);
  row._canvas = make("canvas", { role: "img", class: "level" });
  row._cells.wave.append(row._canvas);
  return row;
}

function updateLine(row, line, changes, now) {
  const { name, number, level, owner, safe, limit } = row._cells;
  say(name, lineName(line));
  say(number, line.line);
  say(level, line.value === null ? "–" : line.value);
  level.dataset.level = line.value;
  say(owner, line.owner ? who(line.owner.principal) : "");
  say(safe, line.hold === "keep" ? `${line.safe}, kept` : line.safe);
  say(limit, uses(line).join("; "));
  drawLevel(row._canvas, changes, now - WINDOW, now);
  const recent = changes.filter(([at]) => at > now - WINDOW).length;
  const label = `${lineName(line)}: ${levelText(line.value)}; ${recent} changes in the last minute`;
  if (row._canvas.getAttribute("aria-label") !== label) row._canvas.setAttribute("aria-label", label);
}

/** The value of a signal for people: "0.5 duty", "off", "not known". */
function valueText({ unit }, value) {
  return typeof value === "number" ? `${figure(value)} ${unit}` : levelText(value);
}

function updateSignal(row, signal, changes, now) {
  const { name, number, level, owner, safe, limit } = row._cells;
  const { min, max } = signal.limit;
  say(name, signal.name);
  say(number, `${signal.bus.split(":")[0]} ${signal.channel}`);
  say(level, signal.value === null ? "–" : valueText(signal, signal.value));
  say(owner, signal.owner ? who(signal.owner.principal) : "");
  say(safe, `${valueText(signal, signal.safe)}${signal.hold === "keep" ? ", kept" : ""}`);
  say(limit, signalUses(signal).join("; "));
  drawLevel(row._canvas, changes, now - WINDOW, now, min, max);
  const recent = changes.filter(([at]) => at > now - WINDOW).length;
  const label = `${signal.name}: ${valueText(signal, signal.value)}; ${recent} changes in the last minute, between ${figure(min)} and ${figure(max)}`;
  if (row._canvas.getAttribute("aria-label") !== label) row._canvas.setAttribute("aria-label", label);
}

function createNamed() {
  const names = ["name", "bus", "value", "quality", "safe", "limit", "owner", "left"];
  const cells = names.map((name) => make(name === "name" ? "th" : "td", name === "name" ? { scope: "row" } : { class: name }));
  const row = make("tr", {}, ...cells);
  row._cells = cells;
  return row;
}

/** One row of the table of all signals, of whatever kind. */
function updateNamed(row, signal) {
  const { name, bus, value, quality, why, safe, limit, owner, left } = signal;
  const unit = signal.unit ?? "";
  const shown = [
    name, bus, value === null ? "–" : valueText({ unit }, value).trim(), why ? `${quality}: ${why}` : quality,
    safe === null ? "–" : valueText({ unit }, safe).trim(),
    Object.entries(limit).map(([key, most]) => `${key.replaceAll("_", " ")} ${figure(most)}`).join("; "),
    owner ? who(owner.principal) : "", left ? "left as it is" : "",
  ];
  row._cells.forEach((cell, index) => say(cell, shown[index]));
  row._cells[3].dataset.state = { good: "good", failed: "bad" }[quality] ?? "";
}

function signalUses({ unit, limit, role, reserved }) {
  const { min, max, max_step: step, slew_per_s: slew } = limit;
  const said = [`${figure(min)} to ${figure(max)} ${unit}`];
  if (step !== undefined) said.push(`steps of ${figure(step)}`);
  if (slew !== undefined) said.push(`${figure(slew)} a second`);
  if (role) said.push(role);
  if (reserved) said.push(`reserved: ${reserved}`);
  return said;
}

function uses(line) {
  const said = Object.entries(line.limit ?? {}).map(([name, value]) => `${name.replaceAll("_", " ").replace(/ (ms|hz)$/, "")} ${value}${/ms$/.test(name) ? " ms" : " Hz"}`);
  if (line.role) said.push(line.role);
  if (line.reserved) said.push(`reserved: ${line.reserved}`);
  if (line.direction === "input") said.push("input");
  if (line.active_low) said.push("active low");
  return said;
}

function createBus() {
  const cells = [make("th", { scope: "row" }), make("td", { class: "state" }), make("td"), make("td")];
  const row = make("tr", {}, ...cells);
  row._cells = cells;
  return row;
}

function updateBus(row, [id, bus]) {
  const [name, state, waiting, transactions] = row._cells;
  say(name, id);
  say(state, `${bus.state}${bus.leased ? ", leased" : ""}${bus.reason ? `: ${bus.reason}` : ""}`);
  state.dataset.state = bus.state === "ready" ? "good" : "bad";
  say(waiting, bus.queued);
  say(transactions, bus.transactions);
}
