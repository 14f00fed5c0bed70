// Small charts.

import { duration, h, readable, svg } from "./dom.js";

const WIDTH = 320, HEIGHT = 130, LEFT = 56, BOTTOM = 22, TOP = 8, RIGHT = 10;

/**
 * Draw the time of a batch by its rows, with a dot for each measurement and a mark at the chosen size.
 * @param {Record<string, number>} seconds By rows.
 * @param {number} chosen Rows.
 */
export function batchCurve(seconds, chosen) {
  const points = Object.entries(seconds).map(([rows, time]) => ({ rows: Number(rows), time })).sort((one, other) => one.rows - other.rows);
  if (points.length < 2) return points.length ? h("p", {}, `A row takes ${duration(points[0].time)}.`) : null;
  const most = Math.max(...points.map(point => point.time));
  const [first, last] = [Math.log2(points[0].rows), Math.log2(points[points.length - 1].rows)];
  const x = (/** @type {number} */ rows) => LEFT + ((Math.log2(rows) - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ time) => TOP + (1 - time / most) * (HEIGHT - TOP - BOTTOM);
  const label = `Seconds by rows of a batch: ${points.map(({ rows, time }) => `${rows}: ${duration(time)}`).join(", ")}`;
  return h("figure", { class: "curve" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      ...[0, 0.5, 1].flatMap(part => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part * most), y2: y(part * most) }),
        svg("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" }, part ? duration(part * most) : "0"),
      ]),
      svg("polyline", { class: "line", points: points.map(({ rows, time }) => `${x(rows)},${y(time)}`).join(" ") }),
      ...points.flatMap(({ rows, time }) => [
        svg("circle", { class: rows === chosen ? "chosen" : "dot", cx: x(rows), cy: y(time), r: rows === chosen ? 5 : 3 }, svg("title", {}, `${rows} rows: ${duration(time)}`)),
        svg("text", { x: x(rows), y: HEIGHT - 6, "text-anchor": "middle" }, rows),
      ])),
    h("figcaption", {}, `Time of a batch by number of rows. A batch has at most ${readable(chosen)} rows.`));
}

/**
 * Draw a share as a bar.
 * @param {string} label
 * @param {number} share From 0 to 1.
 * @param {string} text
 */
export function meter(label, share, text) {
  const bar = h("span", { class: "bar" });
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("div", { class: "meter" }, h("span", { class: "name" }, label), h("span", { class: "track" }, bar), h("span", { class: "value" }, text));
}
