// Addresses within the page. Moving between them keeps the page's memory.

import { ROOT } from "./api.js";
import { h } from "./dom.js";

const BASE = new URL("playground", ROOT);

const address = () => location.pathname + location.search;
let shown = address();

/**
 * Make a link to another view.
 * @param {string} path Relative to the page's address.
 * @param {...(Node | string)} children
 */
export const link = (path, ...children) => h("a", { href: `${BASE.pathname}${path && "/"}${path}` }, ...children);

/** Return the parts of the current address after the page's address. */
export const parts = () => location.pathname.slice(BASE.pathname.length).split("/").filter(Boolean).map(decoded);

/** Return a parameter of the current address, such as the search text. @param {string} name */
export const wordOf = name => new URLSearchParams(location.search).get(name) ?? "";

/** Keep a parameter in the address, for the back button and shared links. @param {string} name @param {string} word */
export function keepWord(name, word) {
  const url = new URL(location.href);
  if (word) url.searchParams.set(name, word);
  else url.searchParams.delete(name);
  history.replaceState(history.state, "", url);
  shown = address();
}

/** @param {string} part It may not be valid UTF-8. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * Follow links to other views without leaving the page. Each view begins at its top, with the focus
 * on its heading. Going back restores its position.
 * @param {HTMLElement} main
 * @param {() => Promise<void>} show
 */
export function follow(main, show) {
  history.scrollRestoration = "manual"; // the browser would scroll before the content exists
  const arrive = async (/** @type {number} */ place) => {
    shown = address();
    await show();
    if (shown !== address()) return;
    scrollTo(0, place);
    const heading = main.querySelector("h1");
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
  };
  document.addEventListener("click", event => {
    const found = event.target instanceof Element ? event.target.closest("a") : null;
    if (!found || event.button || event.metaKey || event.ctrlKey || event.shiftKey || found.target || found.hasAttribute("download")) return;
    const url = new URL(found.href);
    if (url.origin !== location.origin || (url.pathname !== BASE.pathname && !url.pathname.startsWith(`${BASE.pathname}/`)) || url.hash) return;
    event.preventDefault();
    history.replaceState({ place: scrollY }, "");
    if (url.href !== location.href) history.pushState(null, "", url);
    arrive(0);
  });
  addEventListener("popstate", () => { if (address() !== shown) arrive(history.state?.place ?? 0); }); // otherwise the change is within a view
}
