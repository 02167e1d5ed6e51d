/**
 * The page: which daemon, which session, and the two buttons. What a task looks like is `tasks.js`'s, the list of events
 * `log.js`'s; the link and the session themselves are `hacp.js`'s.
 *
 * Whatever came over the link reaches the page as text (`textContent`), never as markup.
 */

import { HacpClient, HacpError, LinkError } from "./hacp.js";
import { fromFragment, keep, recall } from "./kept.js";
import { Log } from "./log.js";
import { TaskCard } from "./tasks.js";
import { toolAndArgs } from "./words.js";

const SESSION_INVALID = -32000;

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

const log = new Log(byId("log"));
/** @type {Map<string, TaskCard>} */
const cards = new Map();
/** What this page submits, by the name it has in the list of events. @type {Map<string, any>} */
const plans = new Map();
/** @type {Map<string, number>} */
const runs = new Map();
/** @type {HacpClient | null} */
let client = null;
/** @type {import("./hacp.js").HacpSession | null} */
let session = null;
let submitting = false;
let retryAt = 0;
let wasOpen = false;

// --- the link -----------------------------------------------------------------------------------------------------

/** @param {import("./kept.js").Kept} to */
async function begin(to) {
  let here;
  try {
    here = new HacpClient(to.url, { token: to.token });
  } catch (error) {
    showForm(error instanceof Error ? error.message : String(error)); // what is wrong with the address or the token
    return;
  }
  client = here;
  byId("connect").hidden = true;
  byId("stage").hidden = false;
  keep(to);
  here.addEventListener("state", (event) => showState(/** @type {CustomEvent} */ (event).detail));
  try {
    await here.connect();
  } catch {
    return; // closed meanwhile: `showState` has said why
  }
  if (to.sessionId) await takeUp(to);
  else await openSession();
}

/** @param {import("./hacp.js").StateDetail} detail */
function showState({ state, attempt, retryInMs = 0, reason = "" }) {
  const words = { open: "Connected", connecting: "Connecting…", waiting: "Not connected", closed: "Not connected" };
  byId("link").dataset.state = state;
  byId("link-text").textContent = words[state];
  byId("waiting").hidden = state === "open" || state === "closed" || (state === "connecting" && attempt === 0);
  if (state === "waiting") {
    retryAt = performance.now() + retryInMs;
    byId("waiting-title").textContent = wasOpen ? "The link is lost." : "No connection.";
    byId("elsewhere").hidden = wasOpen;
    byId("waiting-hint").textContent = wasOpen
      ? "While the daemon runs it keeps what happens, and sends it when the link is back. If it has ended, the session and its " +
        "events have ended with it, and its audit log tells what was done."
      : `Is hearthd at ${client?.url}, is the token its own, and is ${location.origin} in its [websocket] origins?`;
    if (attempt === 1) {
      log.note(wasOpen ? `link lost: ${reason}` : `no connection: ${reason}`);
      say(wasOpen ? "The link is lost. Trying to get it back." : "No connection. Trying again.");
    }
  }
  if (state === "open") {
    const again = session ? "connected again; asking for what was missed" : "connected again";
    log.note(wasOpen ? again : `connected to ${client?.url}`);
    say(wasOpen ? "Connected again." : "Connected.");
    wasOpen = true;
  }
  if (state === "closed" && reason && client) showForm(reason);
  showWaiting();
  showButtons();
}

/** Only a few words of one line change with time: what can be clicked must not move away under a finger. */
function showWaiting() {
  const left = Math.max(1, Math.ceil((retryAt - performance.now()) / 1000));
  byId("waiting-text").textContent = client?.state === "waiting" ? `Next attempt in ${left} s.` : "Trying again…";
}

// --- the session --------------------------------------------------------------------------------------------------

async function openSession() {
  if (!client) return;
  try {
    await use(await client.openSession({ clientName: "watch page", onDisconnect: "keep" }));
  } catch (error) {
    showGone("No session:", String(error instanceof Error ? error.message : error));
  }
}

/** @param {import("./kept.js").Kept} to */
async function takeUp(to) {
  if (!client) return;
  try {
    await use(await client.attach(String(to.sessionId)));
  } catch (error) {
    if (error instanceof HacpError && error.code === SESSION_INVALID) {
      lost();
    } else if (error instanceof LinkError) {
      await client.whenOpen().then(() => takeUp(to), () => undefined); // closed meanwhile: `showState` says why
    } else {
      throw error;
    }
  }
}

/** @param {import("./hacp.js").HacpSession} opened */
async function use(opened) {
  session = opened;
  const kept = recall();
  if (kept) keep({ ...kept, sessionId: opened.id });
  byId("gone").hidden = true;
  byId("session-line").hidden = false;
  byId("session-id").textContent = opened.id;
  opened.addEventListener("task", (event) => addCard(/** @type {CustomEvent} */ (event).detail.id, opened));
  opened.addEventListener("event", (event) => take(/** @type {CustomEvent} */ (event).detail));
  opened.addEventListener("gone", () => lost());
  try {
    await opened.follow(); // all its tasks: after a reload those that were, and those that others submit in it
  } catch (error) {
    if (!opened.ended) log.note(`not followed: ${error instanceof Error ? error.message : error}`);
  }
  showButtons();
}

function lost() {
  log.note("the session is gone");
  leave();
  showGone(
    "The session is gone.",
    "The daemon does not know it any more: it was started anew, or the session was idle for too long. Its tasks have ended, " +
      "and the outputs it drove are in their safe state. Events that had not arrived will not come; the audit log has the steps.",
  );
}

function leave() {
  session = null;
  const kept = recall();
  if (kept) keep({ url: kept.url, token: kept.token });
  for (const card of cards.values()) card.gone();
  byId("session-line").hidden = true;
  showButtons();
}

/** @param {string} title @param {string} text @param {boolean} [meant] */
function showGone(title, text, meant = false) {
  const words = document.createElement("p");
  const strong = document.createElement("strong");
  strong.textContent = title;
  words.append(strong, " ", text);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.id = "renew";
  button.textContent = "Open a new session";
  button.disabled = client?.state !== "open";
  button.addEventListener("click", () => {
    button.disabled = true;
    void openSession().then(() => byId("run").focus());
  });
  byId("gone").className = meant ? "notice warn" : "notice bad";
  byId("gone").replaceChildren(words, button);
  byId("gone").hidden = false;
}

// --- tasks --------------------------------------------------------------------------------------------------------

/** @param {string} id @param {import("./hacp.js").HacpSession} owner */
function addCard(id, owner) {
  const card = new TaskCard(id, () => cancel(card));
  cards.set(id, card);
  byId("no-tasks").hidden = true;
  byId("tasks").prepend(card.element);
  owner.get(id).then(
    (found) => {
      for (const [name, plan] of plans) {
        if (plan.intent === found.intent) {
          runs.set(name, (runs.get(name) ?? 0) + 1);
          card.describe(plan, `${name} ${runs.get(name)}`);
          log.rename(id, card.name);
        }
      }
      if (!card.described) card.describe({ intent: found.intent, steps: [] });
      arrange();
      showButtons();
    },
    () => undefined, // the link or the session went meanwhile, which is shown
  );
}

/** The witness stands above its plan: short as it is, it is seen without scrolling. */
function arrange() {
  for (const plan of cards.values()) {
    const witness = plan.element.nextElementSibling;
    const after = [...cards.values()].find((card) => card.element === witness);
    if (after && plan.name.startsWith("plan ") && after.name.startsWith("witness ")) {
      plan.element.before(after.element);
    }
  }
}

/** @param {import("./hacp.js").TaskEvent} event */
function take(event) {
  const card = /** @type {TaskCard} */ (cards.get(event.task_id));
  card.take(event);
  log.event(event, card.name);
  if (event.phase === "task_finish") {
    say(`${card.name}: ${event.status}.`);
    if (event.status !== "SUCCESS") session?.get(event.task_id).then((found) => card.settle(found), () => undefined);
    showButtons();
  }
}

/** @param {TaskCard} card */
async function cancel(card) {
  try {
    await session?.cancel(card.id);
    card.cancelling();
  } catch (error) {
    log.note(`not cancelled: ${error instanceof Error ? error.message : error}`);
  }
}

async function run() {
  if (!session) return;
  byId("run-error").textContent = "";
  submitting = true;
  showButtons();
  try {
    // The witness first: it must not miss the plan's first change of the LED.
    await session.submit(plans.get("witness"));
    await session.submit(plans.get("plan"));
  } catch (error) {
    byId("run-error").textContent = `Not submitted: ${error instanceof Error ? error.message : error}`;
  }
  submitting = false;
  showButtons();
}

async function endSession() {
  try {
    await session?.close();
  } catch (error) {
    byId("run-error").textContent = `Not ended: ${error instanceof Error ? error.message : error}`;
    return;
  }
  leave();
  log.note("the session was ended here");
  showGone("The session is closed.", "Its tasks were cancelled, and the outputs it drove are in their safe state.", true);
}

// --- the page -----------------------------------------------------------------------------------------------------

function showButtons() {
  const usable = client?.state === "open" && session !== null;
  const running = [...cards.values()].some((card) => card.live && card.name.startsWith("plan "));
  byId("run").disabled = !usable || submitting || running;
  byId("run").textContent = runs.get("plan") ? "Run it again" : "Run the plan";
  byId("end").disabled = !usable;
  for (const card of cards.values()) card.enable(usable);
  const renew = byId("renew");
  if (renew) renew.disabled = client?.state !== "open";
}

/** For those who do not see the page. @param {string} text */
function say(text) {
  byId("status").textContent = text;
}

/** @param {string} [why] */
function showForm(why = "") {
  const kept = recall();
  keep(null);
  client = null;
  byId("stage").hidden = true;
  byId("connect").hidden = false;
  byId("connect-error").textContent = why;
  if (kept) byId("url").value = kept.url;
  byId("url").focus();
}

async function main() {
  byId("origin").textContent = location.origin;
  byId("run").addEventListener("click", () => void run());
  byId("end").addEventListener("click", () => void endSession());
  byId("retry").addEventListener("click", () => client?.reconnectNow());
  byId("elsewhere").addEventListener("click", () => {
    const former = client;
    showForm();
    former?.close();
    byId("waiting").hidden = true;
  });
  byId("connect").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    void begin({ url: byId("url").value.trim(), token: byId("token").value.trim() });
  });
  addEventListener("hashchange", () => location.reload()); // another address was pasted over this one
  setInterval(
    () => {
      if (client?.state === "open") for (const card of cards.values()) card.tick();
      showWaiting();
    },
    matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 100,
  );

  const given = fromFragment();
  for (const name of ["plan", "witness"]) {
    plans.set(name, await (await fetch(`${name}.json`)).json());
  }
  const plan = plans.get("plan");
  const whole = plan.steps.reduce((/** @type {number} */ sum, /** @type {any} */ step) => {
    return sum + (step.args?.duration_ms ?? step.args?.timeout_ms ?? 0);
  }, 0);
  byId("plan-intent").textContent = plan.intent;
  byId("plan-summary").textContent = `${plan.steps.length} steps, about ${Math.ceil(whole / 1000)} s`;
  for (const step of plan.steps) {
    const item = document.createElement("li");
    item.textContent = toolAndArgs(step);
    byId("plan-steps").append(item);
  }
  const kept = recall();
  // Another address or token is another principal or daemon: its sessions are not those of before.
  const same = given && kept && given.url === kept.url && given.token === kept.token;
  const to = same || !given ? kept : given;
  if (to) await begin(to);
  else showForm();
}

void main();
