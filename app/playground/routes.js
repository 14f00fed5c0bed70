// Addresses within the page: going from one to another keeps what is in memory.

import { ROOT } from "./api.js";
import { h } from "./dom.js";

const BASE = new URL("playground", ROOT);

/**
 * A link to another view.
 * @param {string} path Relative to the page's own.
 * @param {...(Node | string)} children
 */
export const link = (path, ...children) => h("a", { href: `${BASE.pathname}${path && "/"}${path}` }, ...children);

/** The parts of the current address after the page's own. */
export const parts = () => location.pathname.slice(BASE.pathname.length).split("/").filter(Boolean).map(decodeURIComponent);

/**
 * Follow links to other views without leaving the page.
 * @param {() => void} show
 */
export function follow(show) {
  document.addEventListener("click", event => {
    const found = event.target instanceof Element ? event.target.closest("a") : null;
    if (!found || event.button || event.metaKey || event.ctrlKey || event.shiftKey || found.target || found.hasAttribute("download")) return;
    const url = new URL(found.href);
    if (url.origin !== location.origin || (url.pathname !== BASE.pathname && !url.pathname.startsWith(`${BASE.pathname}/`)) || url.hash) return;
    event.preventDefault();
    if (url.href !== location.href) history.pushState(null, "", url);
    show();
  });
  addEventListener("popstate", show);
}
