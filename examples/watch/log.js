/**
 * The list of events: all that came, in the order it came, and what the page itself has to say about its link.
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
