/** Plots of series: uPlot for quantities, a small canvas for the level of a line or a signal. Each has a sentence and a table beside it. */

import { clock, figure, make, say } from "./dom.js";
import { summary } from "./model.js";

/** Its minified form is a plain script, which the page loads before its modules. */
const { uPlot } = globalThis;

const HEIGHT = 120;
const TABLE_ROWS = 20;

const COLOURS_MS = 1000;
let colours = new Map();
let coloursAt = -Infinity;

/** A colour of the page's theme; asked for anew once a second, because a person may switch the theme. */
export function colour(name) {
  if (performance.now() - coloursAt > COLOURS_MS) {
    colours = new Map();
    coloursAt = performance.now();
  }
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target._onScreen = entry.isIntersecting;
});

// To ask an element for its width makes the browser lay out the page, once for each plot in each frame.
const sized = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) Object.assign(target, { _width: contentRect.width, _height: contentRect.height });
});

/** A figure of one series. `marks(plot)` draws over it; `draw(series, from, to)` brings it up to date, if it is in sight. */
export class Plot {
  #plot = null;
  #width = 0;
  #theme = "";
  #rows = "";
  #drawnTo = -Infinity;
  #drawnFrom = 0;

  constructor(title, marks = () => undefined) {
    this.title = title;
    this.marks = marks;
    this.caption = make("figcaption");
    this.canvas = make("div", { class: "plot", "aria-hidden": "true" });
    this.body = make("tbody");
    const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Time"), make("th", { scope: "col" }, "Value")));
    const table = make("table", {}, make("caption", { class: "unseen" }, `The newest values of ${title}`), head, this.body);
    this.details = make("details", { ontoggle: () => (this.#rows = "") }, make("summary", {}, "As a table"), table);
    this.element = make("figure", { class: "series" }, this.caption, this.canvas, this.details);
    seen.observe(this.element);
    sized.observe(this.canvas);
  }

  draw(series, from, to) {
    if (this.element._onScreen === false) return;
    const width = Math.max(160, this.canvas._width ?? this.canvas.clientWidth);
    // Time moves a plot of a minute by a pixel six times a second: to draw it more often shows nothing more.
    const moved = Math.abs(to - this.#drawnTo) + Math.abs(to - from - this.#drawnFrom);
    if (moved < (to - from) / width) return;
    this.#drawnTo = to;
    this.#drawnFrom = to - from;
    const [times, values] = series.since(from);
    say(this.caption, summary(this.title, values, figure));
    if (this.details.open) this.#table(times, values);
    const theme = colour("--live") + colour("--edge");
    if (!this.#plot || theme !== this.#theme) this.#make(width, theme);
    else if (width !== this.#width) this.#plot.setSize({ width, height: HEIGHT });
    this.#width = width;
    this.#plot.setData([times, values], false);
    this.#plot.batch(() => {
      this.#plot.setScale("x", { min: from, max: to });
      this.#plot.setScale("y", range(values));
    });
  }

  #make(width, theme) {
    this.#plot?.destroy();
    this.#theme = theme;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: true }, y: { auto: false } },
      axes: [{ ...axis, size: 24, values: (_, splits) => splits.map((at) => clock(at * 1000)), space: 90 }, { ...axis, size: 46 }],
      series: [{}, { stroke: colour("--live"), width: 1.5, points: { show: false } }],
      hooks: { draw: [(plot) => this.marks(plot)] },
    };
    this.#plot = new uPlot(options, [[], []], this.canvas);
  }

  #table(times, values) {
    const rows = times.slice(-TABLE_ROWS).map((at, index, kept) => [clock(at * 1000), figure(values[values.length - kept.length + index])]);
    const text = rows.join();
    if (text === this.#rows) return;
    this.#rows = text;
    this.body.replaceChildren(...rows.reverse().map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell)))));
  }
}

function range(values) {
  if (!values.length) return { min: 0, max: 1 };
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
  return { min: low - room, max: high + room };
}

/** Draw a level between two bounds over time: a step plot. Where it is not known, or off, there is nothing. */
export function drawLevel(canvas, changes, from, to, low = 0, high = 1) {
  const scale = window.devicePixelRatio || 1;
  if (canvas._width === undefined) {
    canvas._width = canvas._height = 0;
    sized.observe(canvas);
  }
  const width = Math.round(canvas._width * scale);
  const height = Math.round(canvas._height * scale);
  if (!width) return;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  context.strokeStyle = colour("--live");
  context.lineWidth = 1.5 * scale;
  context.beginPath();
  const room = height - 6 * scale;
  const y = (level) => height - 3 * scale - (Math.min(high, Math.max(low, level)) - low) / (high - low || 1) * room;
  const x = (at) => ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * width;
  let pen = false;
  changes.forEach(([at, level], index) => {
    const until = index + 1 < changes.length ? changes[index + 1][0] : to;
    if (until < from) return;
    if (typeof level !== "number") {
      pen = false;
      return;
    }
    context[pen ? "lineTo" : "moveTo"](x(at), y(level));
    context.lineTo(x(until), y(level));
    pen = true;
  });
  context.stroke();
}
