/**
 * The list of events, in the order in which they happened, and what the page itself has to say about its link.
 *
 * After a reload the events come task by task, so an event goes before those that happened later. What the page says has
 * the browser's time, which may be another than the daemon's: it stays where it was said.
 */

import { eventWords } from "./words.js";

const KEPT = 500;

export class Log {
  #element;
  /** Whether its end is to be seen: who has scrolled back is reading, and is not moved. */
  #atEnd = true;
  /** The tool of a task's step, by "task/index": only `start` names it. @type {Map<string, string>} */
  #tools = new Map();

  /** @param {HTMLElement} element */
  constructor(element) {
    this.#element = element;
    element.addEventListener("scroll", () => {
      this.#atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
    });
    new ResizeObserver(() => this.#show()).observe(element);
  }

  /** @param {import("./hacp.js").TaskEvent} event @param {string} name The task's. */
  event(event, name) {
    const step = `${event.task_id}/${event.step_index}`;
    if (event.tool) this.#tools.set(step, event.tool);
    const who = span("who", name);
    who.dataset.hue = hue(name);
    const entry = this.#add(new Date(event.ts), [
      who,
      span("phase", event.phase === "task_finish" ? "end" : event.phase),
      span("more", eventWords(event, this.#tools.get(step) ?? "")),
    ]);
    entry.dataset.at = event.ts;
    this.#place(entry);
    entry.dataset.task = event.task_id;
    entry.dataset.seq = String(event.seq);
    entry.title = `event ${event.seq} of ${event.task_id}`;
  }

  /** The page's own words. @param {string} text */
  note(text) {
    this.#add(new Date(), [span("", text)]).classList.add("page");
  }

  /** A task's name has become known. @param {string} taskId @param {string} name */
  rename(taskId, name) {
    for (const entry of this.#element.children) {
      const who = entry.querySelector(".who");
      if (who instanceof HTMLElement && /** @type {HTMLElement} */ (entry).dataset.task === taskId) {
        who.textContent = name;
        who.dataset.hue = hue(name);
      }
    }
  }

  /** @param {Date} when @param {HTMLElement[]} words */
  #add(when, words) {
    const entry = document.createElement("div");
    entry.className = "entry";
    const time = document.createElement("time");
    time.dateTime = when.toISOString();
    time.textContent = when.toLocaleTimeString("en-GB") + `.${Math.floor(when.getMilliseconds() / 100)}`;
    const text = document.createElement("div");
    text.append(...words);
    entry.append(time, text);
    this.#element.append(entry);
    while (this.#element.childElementCount > KEPT) this.#element.firstElementChild?.remove();
    this.#show();
    return entry;
  }

  /** Move a new entry before the events that happened later. @param {HTMLElement} entry */
  #place(entry) {
    const at = Date.parse(String(entry.dataset.at));
    let later = null;
    for (let other = entry.previousElementSibling; other; other = other.previousElementSibling) {
      const when = /** @type {HTMLElement} */ (other).dataset.at;
      if (when === undefined) continue;
      if (Date.parse(when) <= at) break;
      later = other;
    }
    later?.before(entry);
  }

  #show() {
    if (this.#atEnd) this.#element.scrollTop = this.#element.scrollHeight;
  }
}

/** @param {string} kind @param {string} text */
function span(kind, text) {
  const element = document.createElement("span");
  element.className = kind;
  element.textContent = text;
  return element;
}

/** @param {string} name */
function hue(name) {
  return name.startsWith("plan ") ? "1" : name.startsWith("witness ") ? "2" : "0";
}
