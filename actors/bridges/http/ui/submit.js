/**
 * A form for a task of one step, made from the schema of its tool. The task is prepared first, so that a person sees what
 * it would change, and then runs exactly that: as soon as it is approved, where the policy asks for that.
 */

import { shownLines } from "./approvals.js";
import { make, say, show } from "./dom.js";

const WAIT_MS = 60_000;
const APPROVAL_REQUIRED = "APPROVAL_REQUIRED";

export class Submit {
  #tools = [];
  #inputs = new Map();
  #plan = null;

  constructor({ session, fail, tell }) {
    Object.assign(this, { session, fail, tell });
    this.tool = make("select", { id: "new-tool", onchange: () => this.#choose() });
    this.args = make("div", { class: "arguments" });
    this.intent = make("input", { id: "new-intent", maxlength: "256", autocomplete: "off" });
    this.form = make("form", { onsubmit: (event) => (event.preventDefault(), void this.#prepare()) },
      field("Tool", this.tool), this.args, field("What for", this.intent), make("button", { type: "submit" }, "Show what it changes"));
    this.plan = make("div", { class: "card", hidden: true, tabindex: "-1" });
    this.element = make("details", { id: "new-task", ontoggle: () => void this.#opened() }, make("summary", {}, "New task"), this.form, this.plan);
  }

  /** List what this person may use; nothing else is offered. */
  async #opened() {
    if (!this.element.open) return;
    try {
      this.#tools = await this.session().tools();
    } catch (error) {
      this.fail("The tools could not be listed", error);
      return;
    }
    const chosen = this.tool.value;
    this.tool.replaceChildren(...this.#tools.map(({ name, risk_level }) => make("option", { value: name }, `${name} (risk ${risk_level})`)));
    if (this.#tools.some(({ name }) => name === chosen)) this.tool.value = chosen;
    else this.#choose();
  }

  #choose() {
    const tool = this.#tools.find(({ name }) => name === this.tool.value);
    const { properties = {}, required = [] } = tool?.params_schema ?? {};
    this.#inputs = new Map(Object.entries(properties).map(([name, schema]) => [name, { schema, ...input(name, schema, required.includes(name)) }]));
    this.args.replaceChildren(make("p", { class: "soft" }, tool?.description ?? ""), ...[...this.#inputs.values()].map(({ element }) => element));
    show(this.plan, false);
  }

  async #prepare() {
    const args = {};
    for (const [name, { control, schema }] of this.#inputs) {
      if (control.value !== "") args[name] = valueOf(control.value, schema);
    }
    const tool = this.tool.value;
    try {
      this.#plan = await this.session().prepare({ intent: this.intent.value || `${tool} from the dashboard`, steps: [{ tool, args }] });
    } catch (error) {
      show(this.plan, false);
      this.fail("It cannot run", error);
      return;
    }
    const { needs, effective_risk } = this.#plan;
    const waits = needs ? `, and waits for ${needs.persons} approval${needs.persons === 1 ? "" : "s"}` : "";
    this.run = make("button", { type: "button", class: "good", onclick: () => void this.#run() }, needs ? "Run when approved" : "Run");
    const drop = make("button", { type: "button", onclick: () => void this.#drop() }, "Discard");
    this.plan.replaceChildren(make("p", {}, `Risk ${effective_risk}${waits}.`), shownLines(this.#plan), make("div", { class: "actions" }, this.run, drop));
    show(this.plan, true);
    this.plan.focus();
  }

  async #run() {
    const plan = this.#plan;
    this.run.disabled = true;
    say(this.run, plan.needs ? "Waiting for the approval" : "Starting");
    try {
      let task = null;
      // The daemon waits a minute at most; this form, until another plan is shown or this one is discarded or decided.
      while (!task && this.#plan === plan) task = await this.session().execute(plan, { waitMs: WAIT_MS }).catch(ifStillWaiting);
      if (!task) return;
      show(this.plan, false);
      const { status, error } = await task.wait();
      this.tell(`${plan.intent}: ${status}${error ? `: ${error}` : ""}`);
    } catch (error) {
      show(this.plan, this.#plan !== plan);
      this.fail("It did not run", error);
    }
  }

  async #drop() {
    const plan = this.#plan;
    this.#plan = null;
    show(this.plan, false);
    this.tool.focus();
    // One that needs no approval expires by itself. This one may have been decided, or have expired.
    if (plan.needs) await this.session().reject(plan).catch(() => undefined);
  }
}

function ifStillWaiting(error) {
  if (error.symbol !== APPROVAL_REQUIRED) throw error;
  return null;
}

function field(label, control, about = null) {
  return make("p", { class: "field" }, make("label", { for: control.id }, label), control, about && make("span", { class: "soft", id: `${control.id}-about` }, about));
}

/** A control for one argument: a choice where the schema has one, else a line of text. */
function input(name, schema, required) {
  const id = `new-arg-${name}`;
  const common = { id, required, "aria-describedby": schema.description ? `${id}-about` : null };
  const choices = schema.type === "boolean" ? [true, false] : schema.enum;
  const control = choices
    ? make("select", common, make("option", { value: "" }, required ? "choose" : "as it is by default"), ...choices.map((one) => make("option", { value: String(one) }, String(one))))
    : make("input", { ...common, autocomplete: "off", spellcheck: "false" });
  return { control, element: field(required ? name : `${name} (optional)`, control, schema.description) };
}

/** What was typed, as the type that the schema has for it; what fits none is sent as text, and the daemon says why not. */
function valueOf(text, schema) {
  const types = [schema, ...(schema.anyOf ?? [])].flatMap(({ type }) => type ?? []);
  const choice = schema.enum?.find((one) => String(one) === text);
  if (choice !== undefined) return choice;
  if (types.includes("boolean") && /^(true|false)$/.test(text)) return text === "true";
  if (types.includes("integer") && /^-?\d+$/.test(text)) return Number(text);
  if (types.includes("number") && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (types.includes("array") || types.includes("object")) {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
  return text;
}
