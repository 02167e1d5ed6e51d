/** The view of the hardware: every line, every bus, and what sensors measure. */

import { clock, list, make, say, show, table, who } from "./dom.js";
import { lineKey, lineName } from "./model.js";
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
    const changes = table("Changes of lines in the last minute", "Time", "Line", "Level");
    this.changes = changes.body;
    this.history = make("details", {}, make("summary", {}, "Changes of lines as a table"), changes.element);
    const buses = table("Buses", "Bus", "State", "Waiting", "Transactions");
    this.buses = buses.body;
    this.plots = make("div", { class: "plots" });
    this.none = make("p", { class: "soft" }, "No sensor has been read since this page was opened.");
    root.append(
      this.title, this.about,
      make("h2", {}, "Measured"), this.none, this.plots,
      make("h2", {}, "Lines"), filter, lines.element, this.history,
      make("h2", {}, "Buses"), buses.element,
    );
  }

  /** Bring the view up to date; `dirty` names the kinds of events since the last time, null: all. */
  render(dirty) {
    const { state, series, changes } = this.model;
    const now = this.model.now();
    say(this.title, state.board.name);
    say(this.about, state.board.description);
    const shown = state.lines.filter((line) => !this.onlyUsed.checked || line.owner || line.role || line.limit || (changes.get(lineKey(line))?.length ?? 0) > 1 || line.value === 1);
    list(this.lines, shown, lineKey, createLine, (row, line) => updateLine(row, line, changes.get(lineKey(line)) ?? [], now));
    if (this.history.open) this.#history(now);
    const buses = Object.entries(state.buses);
    if (!dirty || dirty.has("buses") || dirty.has("snapshot")) list(this.buses, buses, ([id]) => id, createBus, updateBus);
    show(this.none, series.size === 0);
    list(this.plots, [...series.values()], (one) => one.name, createPlot, (figure, one) => figure._plot.draw(one, now - WINDOW, now));
  }

  #history(now) {
    const rows = [];
    for (const line of this.model.state.lines) {
      for (const [at, level] of this.model.changes.get(lineKey(line)) ?? []) {
        if (at > now - WINDOW) rows.push({ at, line, level });
      }
    }
    rows.sort((one, other) => other.at - one.at);
    const cells = ({ at, line, level }) => [clock(at * 1000), lineName(line), levelText(level)].map((cell) => make("td", {}, cell));
    const text = JSON.stringify(rows.slice(0, CHANGES_SHOWN).map(({ at, line, level }) => [at, line.line, level]));
    if (this.shownChanges === text) return;
    this.shownChanges = text;
    this.changes.replaceChildren(...rows.slice(0, CHANGES_SHOWN).map((row) => make("tr", {}, ...cells(row))));
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
