/**
 * What the page was told, and what a reload must find again: address, token, and the session's id.
 *
 * The tab's `sessionStorage` has them: it lasts as long as the tab, and no other tab sees it.
 *
 * @typedef {object} Kept
 * @property {string} url
 * @property {string} token
 * @property {string} [sessionId]
 */

const KEY = "hearth.watch";

/** @returns {Kept | null} */
export function recall() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  } catch {
    return null; // a browser that keeps nothing: then a reload begins anew
  }
}

/** @param {Kept | null} what */
export function keep(what) {
  try {
    if (what) sessionStorage.setItem(KEY, JSON.stringify(what));
    else sessionStorage.removeItem(KEY);
  } catch {
    // See `recall`.
  }
}

/**
 * Address and token from the fragment, which no server ever sees; it leaves the address bar before anybody reads it.
 *
 * @returns {Kept | null}
 */
export function fromFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  const url = given.get("url");
  const token = given.get("token");
  return url && token ? { url, token } : null;
}
