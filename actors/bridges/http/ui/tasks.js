/** The view of what runs: a form for another task, live tasks with their steps, and those that have ended. */

import { ago, args, list, make, say, show, who } from "./dom.js";
import { Submit } from "./submit.js";

const SHOWN_STEPS = 40;

export class Tasks {
  constructor(root, { model, session, you, fail, tell }) {
    Object.assign(this, { model, session, you, fail });
    this.live = make("div", { class: "cards" });
    this.ended = make("div", { class: "cards" });
    this.none = make("p", { class: "soft" }, "No task is running.");
    this.endedTitle = make("h2", {}, "Ended");
    const submit = new Submit({ session, fail, tell });
    root.append(make("h1", { id: "tasks-title" }, "Tasks"), submit.element, make("h2", {}, "Running"), this.none, this.live, this.endedTitle, this.ended);
  }

  render() {
    const { state, ended } = this.model;
    show(this.none, state.tasks.length === 0);
    show(this.endedTitle, ended.length > 0);
    const update = (card, task) => this.#update(card, task);
    list(this.live, state.tasks, (task) => task.task_id, (task) => this.#create(task, true), update);
    list(this.ended, ended, (task) => task.key, (task) => this.#create(task, false), update);
  }

  #create(task, live) {
    const steps = make("ol", { class: "steps" });
    const status = make("span", { class: "status" });
    const about = make("p", { class: "soft" });
    const cancel = live && this.#may(task) && make("button", { type: "button", onclick: () => this.#cancel(task, cancel) }, "Cancel");
    const title = make("h3", {}, task.intent || "(no intent)");
    const card = make("article", { class: "card", "aria-label": `Task: ${task.intent}` }, make("div", { class: "card-head" }, title, status, cancel), about, steps);
    Object.assign(card, { _steps: steps, _status: status, _about: about });
    return card;
  }

  #may(task) {
    return task.principal === this.you().principal || this.you().rights.includes("admin");
  }

  async #cancel(task, button) {
    button.disabled = true;
    // A task of one's own in another session is cancelled in that session; of others only with the right admin.
    const own = task.principal === this.you().principal;
    try {
      await this.session().call("task.cancel", { task_id: task.task_id, ...(own ? { session_id: task.session_id } : {}) });
    } catch (error) {
      button.disabled = false;
      this.fail("The task was not cancelled", error);
    }
  }

  #update(card, task) {
    say(card._status, task.status + (task.dry_run ? ", dry run" : ""));
    card._status.dataset.status = task.status;
    const when = task.ended_at ? `ended ${ago(task.ended_at)} ago, took ${Math.round(task.duration_ms)} ms` : `for ${ago(task.submitted_at)}`;
    const times = task.times > 1 ? `${task.times} times, the last one ` : "";
    say(card._about, `${who(task.principal)}, ${times}${when}${task.reason ? `, ${task.reason}` : ""}`);
    const steps = task.steps.slice(0, SHOWN_STEPS).map((step, index) => ({ ...step, index }));
    if (task.steps.length > SHOWN_STEPS) steps.push({ index: -1, tool: `and ${task.steps.length - SHOWN_STEPS} more steps`, args: {}, status: null });
    list(card._steps, steps, (step) => step.index, createStep, updateStep);
  }
}

function createStep(step) {
  const status = make("span", { class: "status" });
  const item = make("li", {}, make("code", {}, step.tool), " ", make("span", { class: "soft" }, args(step.args)), " ", status);
  item._status = status;
  return item;
}

function updateStep(item, step) {
  say(item._status, step.status ? step.status + (step.latency_ms === undefined ? "" : ` ${step.latency_ms} ms`) : "");
  item._status.dataset.status = step.status ?? "";
}
