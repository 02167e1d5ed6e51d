/**
 * The dashboard: sign-in, the connection, the views, and the halt, which is always in reach.
 *
 * One model is kept up to date by the stream of the daemon's events. The view that is open is drawn at most ten times a
 * second, and only if something has changed or time passes in it. What a person may not do is not offered.
 */

import { HacpClient, HacpError } from "./hacp.js";

import { Approvals } from "./approvals.js";
import { Board } from "./board.js";
import { clock, say, show, who } from "./dom.js";
import { Model } from "./model.js";
import { System } from "./system.js";
import { Tasks } from "./tasks.js";
import { Timeline } from "./timeline.js";

const FRAME_MS = 100;
const VIEWS = { board: Board, tasks: Tasks, approvals: Approvals, timeline: Timeline, system: System };
const find = (id) => document.getElementById(id);

const model = new Model();
let client = null;
let session = null;
let you = { principal: "", policy: "", rights: [] };
let views = null;
let opening = false;

// --- signing in -------------------------------------------------------------------------------------------------------

const token = {
  get: () => sessionStorage.getItem("token"),
  keep: (value) => (value ? sessionStorage.setItem("token", value) : sessionStorage.removeItem("token")),
};

function signedOut(why) {
  // What was driven from here goes to its safe state now, and not when the session has been idle for long enough.
  session?.close().catch(() => undefined);
  client?.close();
  client = session = null;
  token.keep(null);
  sessionStorage.removeItem("in");
  model.clear();
  for (const id of ["views", "halt", "foot", "halted", "denied", "notice", ...Object.keys(VIEWS)]) show(find(id), false);
  show(find("sign-in"), true);
  if (why) say(find("sign-in-why"), why);
  linkState("closed", "not connected");
  find("token").focus();
}

/** Sign out as the person asks; without a link the daemon cannot be told, and the page says what follows. */
function signOut() {
  const told = !session || client?.state === "open";
  signedOut(
    told
      ? "You are signed out."
      : "You are signed out here, but the daemon could not be told: the connection is lost. What was driven from this " +
          "page goes to its safe state when its session has been idle for its time, 300 s unless configured otherwise.",
  );
}

let offered = null;

/**
 * Take the token of a link out of the address, before anyone reads it over a shoulder, and ask whether to sign in with it.
 * Anyone can make such a link: until the person agrees, the token is not stored, and no connection is made with it.
 */
function offer() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  history.replaceState(null, "", location.pathname);
  offered = given;
  show(find("sign-in"), false);
  const instead = client ? " It replaces the sign-in that this page has." : "";
  say(
    find("offer-why"),
    `The link has a token for the hearth daemon at ${location.host}.${instead} Sign in only if you know who gave you the ` +
      "link: what you do from then on is done, and recorded, in the name of that token.",
  );
  show(find("offer"), true);
  find("offer-not").focus();
}

function answerOffer(agreed) {
  const given = offered;
  offered = null;
  show(find("offer"), false);
  if (agreed) {
    signedOut(null);
    void signIn(given);
  } else show(find("sign-in"), !client && find("denied").hidden);
}

async function signIn(given) {
  token.keep(given);
  sessionStorage.setItem("in", "1");
  show(find("sign-in"), false);
  show(find("denied"), false);
  const url = `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/hacp`;
  try {
    client = new HacpClient(url, given ? { token: given } : {});
  } catch (error) {
    signedOut(error.message);
    return;
  }
  client.addEventListener("state", ({ detail }) => connection(detail));
  client.connect().then(open, () => undefined);
}

/** Open a session, and observe in it; again when the daemon has begun anew and knows the old one no more. */
async function open() {
  if (opening || !client) return;
  opening = true;
  try {
    session = await client.openSession({ clientName: "dashboard", onDisconnect: "keep" });
    session.addEventListener("observe", ({ detail }) => {
      model.apply(detail);
      if (detail.kind === "snapshot" && model.missed) tell(model.missed);
    });
    session.addEventListener("gone", () => client?.whenOpen().then(open, () => undefined));
    session.addEventListener("denied", ({ detail }) => denied(detail));
    const answer = await session.observe(model.last ?? undefined);
    ({ you } = answer);
    entered();
  } catch (error) {
    if (error instanceof HacpError) denied(error);
    else client?.whenOpen().then(open, () => undefined); // the link was lost meanwhile
  } finally {
    opening = false;
  }
}

/** Show why there is no session; the link stays, because a halt needs none. */
function denied(error) {
  session?.close().catch(() => undefined);
  session = null;
  model.clear();
  for (const id of ["views", "foot", "halted", ...Object.keys(VIEWS)]) show(find(id), false);
  say(find("denied-why"), error.data.reason ?? error.message);
  show(find("denied"), true);
  linkState("closed", "not allowed");
}

function entered() {
  show(find("denied"), false);
  for (const id of ["views", "foot"]) show(find(id), true);
  say(find("who"), `Signed in as ${who(you.principal)}`);
}

/** Make the views, once there is a state to show. */
function makeViews() {
  const parts = { model, session: () => session, client: () => client, you: () => you, fail, tell };
  views = Object.fromEntries(Object.entries(VIEWS).map(([name, View]) => [name, new View(find(name), parts)]));
  route();
}

// --- the connection ---------------------------------------------------------------------------------------------------

function connection({ state, wasOpen, reason }) {
  if (state === "open") {
    linkState("open", "live");
    show(find("halt"), true);
    // A session that was resumed observes again by itself.
    if (!session || session.ended) void open();
  } else if (state === "waiting" && !wasOpen) {
    signedOut(`The daemon did not accept this sign-in, or does not answer (${reason}). Its log says why.`);
  } else if (state === "waiting") {
    linkState("waiting", "connection lost");
    alarm("The connection to the daemon is lost. What you see is not up to date.");
  } else if (state === "connecting" && find("link").dataset.state !== "waiting") {
    linkState("connecting", "connecting");
  }
}

function linkState(state, text) {
  const link = find("link");
  if (link.dataset.state === "waiting" && state === "open") alarm("The connection is there again.");
  link.dataset.state = state;
  say(link, text);
  document.body.classList.toggle("stale", state === "waiting");
}

// --- halt -------------------------------------------------------------------------------------------------------------

async function halt() {
  try {
    const { since } = await client.halt("by a person at the dashboard");
    if (!model.state) tell(`Halted since ${clock(since)}.`);
  } catch (error) {
    fail("The halt was not acknowledged: press it again", error);
  }
}

function haltState() {
  const { halt } = model.state;
  const band = find("halted");
  if (halt.halted && band.hidden) alarm(`Halted: ${halt.reason}`);
  show(band, halt.halted);
  document.body.classList.toggle("is-halted", halt.halted);
  if (!halt.halted) {
    sure(false);
    return;
  }
  const named = (places) => (places ?? []).map(({ bus, outputs, names }) => `${(names ?? outputs).join(", ")} (${bus})`).join(", ");
  const [unsafe, safe, left] = [named(halt.unsafe), named(halt.safe), named(halt.left)];
  const open = Object.entries(halt.inputs ?? {}).filter(([, state]) => state !== "clear").map(([name, state]) => `${name}: ${state}`);
  const parts = [`Halted since ${clock(halt.since)} by ${who(halt.by)}: ${halt.reason}.`];
  for (const one of (halt.holds ?? []).slice(1)) parts.push(`Also held by ${who(one.by ?? one.source)}: ${one.last_reason}.`);
  if (halt.stopping) parts.push("The stop sequence still runs.");
  else if (unsafe) parts.push(`NOT SAFE yet: ${unsafe}.`);
  else parts.push(`Every output that has a safe state is there${safe ? `: ${safe}` : ""}.`);
  if (left) parts.push(`LEFT AS THEY ARE, without a safe state: ${left}.`);
  if (open.length) parts.push(`Halt inputs that are not clear: ${open.join(", ")}.`);
  if (halt.latched === false) parts.push(`Not kept over a restart: ${halt.problem ?? "it is being written"}.`);
  say(find("halted-text"), parts.join(" "));
  const may = you.rights.includes("reset_halt");
  show(find("reset"), may && find("reset-sure").hidden);
}

function sure(asking) {
  show(find("reset-sure"), asking);
  show(find("reset"), !asking && you.rights.includes("reset_halt"));
  if (asking) find("reset-not").focus();
}

async function reset() {
  try {
    await session.haltReset();
    tell("The halt was reset.");
  } catch (error) {
    fail("The halt was not reset", error);
  }
  sure(false);
}

// --- words ------------------------------------------------------------------------------------------------------------

function tell(text) {
  const notice = find("notice");
  notice.dataset.kind = "";
  say(notice, text);
  show(notice, true);
}

function fail(what, error) {
  tell(`${what}: ${error.data?.reason ?? error.message}`);
  find("notice").dataset.kind = "bad";
}

function alarm(text) {
  say(find("alarms"), "");
  requestAnimationFrame(() => say(find("alarms"), text));
}

// --- views ------------------------------------------------------------------------------------------------------------

function route() {
  const wanted = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "board";
  for (const link of find("views").querySelectorAll("a")) {
    const here = link.hash === `#${wanted}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const name of Object.keys(VIEWS)) show(find(name), name === wanted && model.state !== null);
  document.title = `hearth: ${wanted}`;
  model.dirty.add("view");
  return wanted;
}

let downBefore = "";

/** Draw a frame, and have the next one drawn; a page that is out of sight is not drawn. */
function draw() {
  // First: a fault in one frame must not be the last one. A frame of its own for each display refresh would cost more
  // than all that is drawn.
  setTimeout(() => requestAnimationFrame(draw), FRAME_MS);
  if (model.state) {
    if (!views) makeViews();
    const dirty = model.take();
    const wanted = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "board";
    if (find(wanted).hidden) route();
    say(find("board-name"), model.state.board.name);
    say(find("tasks-count"), model.state.tasks.length || "");
    say(find("approvals-count"), model.state.approvals.length || "");
    haltState();
    const down = Object.entries(model.state.buses).filter(([, bus]) => bus.state !== "ready").map(([id, bus]) => `${id} is ${bus.state}`).join(", ");
    if (down && down !== downBefore) alarm(`Bus trouble: ${down}`);
    downBefore = down;
    views[wanted].render(dirty.has("view") || dirty.has("snapshot") ? null : dirty);
  }
}

// --- the beginning ----------------------------------------------------------------------------------------------------

find("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  void signIn(find("token").value.trim() || null);
  find("token").value = "";
});
find("sign-in-without").addEventListener("click", () => void signIn(null));
for (const id of ["sign-out", "sign-out-denied"]) find(id).addEventListener("click", signOut);
find("halt").addEventListener("click", () => void halt());
find("reset").addEventListener("click", () => sure(true));
find("reset-not").addEventListener("click", () => (sure(false), find("halt").focus()));
find("reset-now").addEventListener("click", () => void reset());
find("offer-not").addEventListener("click", () => answerOffer(false));
find("offer-sign-in").addEventListener("click", () => answerOffer(true));
addEventListener("hashchange", () => {
  offer();
  route();
  find("main").focus({ preventScroll: true });
});
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key.toLowerCase() === "h" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && client) {
    event.preventDefault();
    void halt();
  }
  if (event.key === "Escape" && !find("notice").hidden) show(find("notice"), false);
});

if (sessionStorage.getItem("in")) void signIn(token.get());
else signedOut(null);
offer();
requestAnimationFrame(draw);
