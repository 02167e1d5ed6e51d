/** The view of the daemon itself: health, confinement, sessions, policy, the audit log's head. */

import { ago, list, make, say, table, who } from "./dom.js";

export class System {
  constructor(root, { model, you }) {
    Object.assign(this, { model, you });
    this.facts = make("dl", { class: "facts" });
    const sessions = table("Sessions", "Client", "Principal", "Policy", "Open for");
    this.sessions = sessions.body;
    root.append(make("h1", { id: "system-title" }, "System"), this.facts, make("h2", {}, "Sessions"), sessions.element);
  }

  render() {
    const { state } = this.model;
    list(this.facts, facts(state, this.you()), ([name]) => name, createFact, (entry, [, value, bad]) => {
      say(entry.lastElementChild, value);
      entry.lastElementChild.dataset.state = bad ? "bad" : "";
    });
    list(this.sessions, state.sessions, (session) => session.session_id, createSession, (row, session) => {
      say(row._cells[0], session.client_name ?? "(no name)");
      say(row._cells[1], who(session.principal));
      say(row._cells[2], session.policy);
      say(row._cells[3], ago(session.opened_at));
    });
  }
}

function facts(state, you) {
  const { health, policy } = state;
  const { audit, sandbox, memory, amqp, listeners = [] } = health;
  const missing = Object.entries(sandbox?.missing ?? {}).map(([part, why]) => `${part} (${why})`).join(", ");
  const confined = sandbox ? `${sandbox.state}${missing ? `; missing: ${missing}` : ""}${sandbox.reason ? `: ${sandbox.reason}` : ""}` : "this process does not confine itself";
  return [
    ["Health", health.ok ? "all is well" : "something is wrong: see buses and audit log", !health.ok],
    ["Version", state.version],
    ["Board", `${state.board.name}: ${state.board.description}`],
    ["Confinement", confined, sandbox && sandbox.state !== "in force"],
    ["Audit log", audit.ok ? `written, durability ${audit.durability}${audit.warning ? `; ${audit.warning}` : ""}` : audit.reason, !audit.ok],
    ["Audit head", audit.seq === undefined ? "not known" : `${audit.seq}:${audit.head}`],
    ["Memory kept for clients", `${Math.round(memory.retained_bytes / 1024)} KiB of ${Math.round(memory.max_retained_total_bytes / 1048576)} MiB`],
    ["Listeners", listeners.join(", ") || "none"],
    ["Broker", amqp ? uplink(amqp) : "none", amqp && !amqp.connected],
    ["Policy", `${policy.entries.join(", ")}; read ${ago(policy.read_at)} ago`],
    ["You", `${who(you.principal)}, by policy ${you.policy}, with ${you.rights.join(", ") || "no rights"}`],
  ];
}

function uplink({ broker, connected, id, outbox, reason }) {
  const state = connected ? "connected" : `not connected: ${reason ?? "connecting"}`;
  return `${state}; ${id} at ${broker}; ${outbox} messages wait`;
}

function createFact([name]) {
  return make("div", {}, make("dt", {}, name), make("dd"));
}

function createSession() {
  const cells = [make("th", { scope: "row" }), make("td"), make("td"), make("td")];
  const row = make("tr", {}, ...cells);
  row._cells = cells;
  return row;
}
