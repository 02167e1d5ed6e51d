/**
 * Small helpers to build and update the page. Text is always set as text: nothing that a task or a device says is markup,
 * and what a browser would act on or hide is an escape.
 */

const UNSEEN = /(?![\n\t])[\p{C}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0]/gu;

/** Text with an escape for each control, zero-width and bidirectional format character: "\\u{202e}". */
function clean(text) {
  return text.replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** Make an element: `make("td", { class: "x", onclick: f }, "text", child)`; null and false children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  const there = children.filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...there.map((child) => (typeof child === "string" ? clean(child) : child)));
  return element;
}

/** Set an element's text, only if it differs: most of a page does not change. */
export function say(element, text) {
  const wanted = text === null || text === undefined ? "" : clean(String(text));
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/**
 * Keep a container's children in step with a list: `create(item)` makes one, which `update(child, item)` brings up to
 * date. Children are kept by `key`, so focus and open details stay where they are.
 */
export function list(container, items, key, create, update) {
  container._children ??= new Map();
  const known = container._children;
  const wanted = new Set();
  let place = container.firstElementChild;
  for (const item of items) {
    const id = key(item);
    wanted.add(id);
    let child = known.get(id);
    if (!child) {
      child = create(item);
      known.set(id, child);
    }
    update(child, item);
    if (child !== place) container.insertBefore(child, place);
    else place = place.nextElementSibling;
  }
  for (const [id, child] of known) {
    if (wanted.has(id)) continue;
    child.remove();
    known.delete(id);
  }
}

/** A table in a box that scrolls sideways on a narrow screen: { table, body }. */
export function table(caption, ...heads) {
  const body = make("tbody");
  const row = make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)));
  const element = make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, row), body);
  return { element: make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, element), body };
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** A time of day, in the person's own zone. */
export function clock(ts) {
  return ts ? CLOCK.format(new Date(ts)) : "";
}

/** A number for people. */
export function figure(value) {
  if (typeof value === "boolean") return value ? "true" : "false";
  if (Number.isInteger(value)) return String(value);
  return Number(value.toPrecision(5)).toString();
}

/** A principal as people tell it from others: of a token's digest the beginning. A stop sequence is no principal's. */
export function who(principal) {
  return (principal ?? "the daemon").replace(/^(token:[0-9a-f]{12})[0-9a-f]+$/, "$1…");
}

/** Arguments as people write them: line=LED value=1; in quotes what could be taken for more than one. */
export function args(given) {
  return Object.entries(given ?? {})
    .map(([name, value]) => `${name}=${typeof value === "string" && /^[\w./:+-]+$/.test(value) ? value : JSON.stringify(value)}`)
    .join(" ");
}

/** How long ago something was, in the largest unit. */
export function ago(ts, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(ts)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
