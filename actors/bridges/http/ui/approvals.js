/** The view of what waits for a person: plans with each step before and after, and jobs (HCP). */

import { ago, clock, list, make, say, show, who } from "./dom.js";

const NOT_SERVED = -32601;

export class Approvals {
  #asked = null;
  #running = false;

  constructor(root, { model, session, client, fail, tell }) {
    Object.assign(this, { model, session, client, fail, tell, plans: [], jobs: [] });
    this.cards = make("div", { class: "cards" });
    this.none = make("p", { class: "soft" }, "Nothing waits for a person.");
    this.others = make("p", { class: "soft" });
    this.standing = make("div", { class: "cards", role: "group", "aria-label": "Given in advance" });
    root.append(make("h1", { id: "approvals-title" }, "Approvals"), make("h2", {}, "Waiting for a person"), this.none, this.others, this.cards);
    root.append(make("h2", {}, "Given in advance"), this.standing);
  }

  /** What waits is in the state; its content is asked for, and answered only to those who may decide. */
  render() {
    const waiting = this.model.state.approvals;
    // Their records say that others were given, used or ended.
    const last = this.model.records.findLast(({ event }) => event.startsWith("approval.") || event === "plan.execute" || event === "halt");
    const asked = JSON.stringify([waiting, last]);
    if (asked !== this.#asked && !this.#running) void this.#ask(asked);
    const plans = this.plans;
    const known = new Set([...plans.map((plan) => plan.plan_id), ...this.jobs.map((job) => job.approval_id)]);
    const hidden = waiting.filter((one) => !known.has(one.approval_id)).length;
    show(this.none, waiting.length === 0);
    show(this.others, hidden > 0);
    say(this.others, `${hidden} more ${hidden === 1 ? "waits" : "wait"} for somebody else: you may not decide on ${hidden === 1 ? "it" : "them"}, so ${hidden === 1 ? "it is" : "they are"} not shown.`);
    const items = [
      ...plans.map((plan) => ({ id: plan.plan_id, kind: "plan", plan })),
      ...this.jobs.map((job) => ({ id: job.approval_id, kind: "job", job })),
    ];
    list(this.cards, items, (item) => item.id, (item) => (item.plan ? this.#plan(item.plan) : this.#job(item.job)), updateCard);
  }

  async #ask(asked) {
    this.#running = true;
    try {
      const waiting = (await this.session().plans()).plans.filter((one) => one.state === "waiting");
      this.plans = (await Promise.all(waiting.map((one) => this.session().plan(one.plan_id).catch(ifGone)))).filter(Boolean);
      this.jobs = (await this.client().call("hcp.pending").catch(ifNotServed)).approvals;
      const { approvals } = await this.session().call("approval.list");
      list(this.standing, approvals, (one) => one.approval_id, () => make("article", { class: "card" }), (card, one) => this.#given(card, one));
      this.#asked = asked;
    } catch (error) {
      this.#asked = asked;
      this.fail("What waits could not be read", error);
    } finally {
      this.#running = false;
      if (this.model.state) this.model.dirty.add("approvals");
    }
  }

  #plan(plan) {
    const risk = `risk ${plan.effective_risk}, from ${who(plan.principal)}, until ${clock(plan.expires_at)}`;
    return this.#card(plan.intent || "(no intent)", risk, shownLines(plan), plan.may_approve, {
      id: plan.plan_id,
      approve: () => this.session().approve(plan),
      reject: (reason) => this.session().reject(plan, reason),
    });
  }

  #job(job) {
    const about = `job ${job.capability} ${job.capability_version} of ${job.caller_id} (${who(job.principal)}), risk ${job.risk_level}, data ${job.data_classification}`;
    return this.#card(job.question || job.intent || job.capability, about, shownLines(job), !job.own, {
      id: job.approval_id,
      approve: () => this.client().call("hcp.decide", { approval_id: job.approval_id, approve: true }),
      reject: (reason) => this.client().call("hcp.decide", { approval_id: job.approval_id, approve: false, reason }),
    });
  }

  #given(card, { approval_id, text, left, by, may_revoke }) {
    const revoke = () => this.session().call("approval.revoke", { approval_id }).then(() => this.tell("Revoked"), (error) => this.fail("It was not revoked", error));
    const about = make("p", { class: "soft" }, `${left} left, given by ${who(by)}`);
    card.replaceChildren(make("p", {}, text), about, may_revoke ? make("button", { type: "button", onclick: revoke }, "Revoke") : "");
  }

  #card(title, about, content, may, { id, approve, reject }) {
    const reason = make("input", { id: `reason-${id}`, maxlength: "256", autocomplete: "off" });
    const decide = (act, done) => async () => {
      buttons.forEach((button) => (button.disabled = true));
      try {
        await act();
        this.tell(done);
      } catch (error) {
        this.fail("It was not decided", error);
      } finally {
        buttons.forEach((button) => (button.disabled = false));
        this.#asked = null;
        this.model.dirty.add("approvals");
      }
    };
    const buttons = [
      make("button", { type: "button", class: "good", onclick: decide(approve, `Approved: ${title}`) }, "Approve"),
      make("button", { type: "button", onclick: decide(() => reject(reason.value || undefined), `Rejected: ${title}`) }, "Reject"),
    ];
    const waits = make("p", { class: "soft" });
    const actions = may
      ? make("div", { class: "actions" }, buttons[0], buttons[1], make("label", { for: reason.id }, "Reason"), reason)
      : make("p", { class: "soft" }, "Your approval does not count for it: another person must give it.");
    const card = make("article", { class: "card", "aria-label": `Waits: ${title}` }, make("h3", {}, title), make("p", { class: "soft" }, about), waits, content, actions);
    card._waits = waits;
    return card;
  }
}

/** What is decided on, a plan or a job, in the lines with which the daemon shows it: the page shows nothing in its own way. */
export function shownLines({ shown }) {
  return make("pre", { class: "shown", tabindex: "0", role: "region", "aria-label": "What would run" }, shown.join("\n"));
}

function updateCard(card, { plan }) {
  if (!plan) return;
  const given = plan.approved_by.length ? `, given by ${plan.approved_by.map(who).join(", ")}` : "";
  say(card._waits, `waits for ${ago(plan.created_at)}, needs ${plan.needs.persons} approval${plan.needs.persons === 1 ? "" : "s"}${given}`);
}

function ifNotServed(error) {
  if (error.code !== NOT_SERVED && error.symbol !== "RPC_PERMISSION_DENIED") throw error;
  return { approvals: [] };
}

/** A plan that ended since it was listed is not shown. */
function ifGone(error) {
  if (error.symbol !== "PLAN_STALE") throw error;
  return null;
}
