// Live metrics, second by second.

import { keyForm } from "./access.js";
import { askJson, needsKey } from "./api.js";
import { duration, fill, h, readable, sentence, svg } from "./dom.js";
import { readEvents } from "./events.js";
import { bucketOf, failures, quantile, sum, together } from "./histograms.js";
import { loadForm } from "./load.js";
import { link } from "./routes.js";

/** @typedef {import("./histograms.js").Counts} Counts */
/** @typedef {Counts & {model: string, version: string, total: number}} VersionCounts */
/** Counts by version. `others` adds up the versions that the viewer may not see, if it may see their sum. @typedef {{at: number, seconds: number, queued: number, versions: VersionCounts[], others: Counts | null}} Sample */
/** @typedef {{durations: number[], rows: number[]}} Bounds */

const SHOWN = 180, OVER = 10; // seconds shown in the charts and averaged in the table
const WIDTH = 360, HEIGHT = 110, LEFT = 58, TOP = 8, BOTTOM = 18;

/**
 * Show the live view.
 * @param {HTMLElement} main
 * @param {AbortSignal} left Aborted when the page is left.
 */
export async function showLive(main, left) {
  const { models } = await askJson("models", { signal: left });
  const charts = CHARTS.map(one => ({ ...one, element: h("figure", { class: "live" }) }));
  const table = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Versions" });
  const said = h("p", { class: "hint", role: "status" }, "Waiting for the first second…");
  const asked = h("div", {});
  fill(main, h("h1", {}, "Live"), said, asked,
    h("div", { class: "charts" }, ...charts.map(chart => chart.element)),
    h("section", { "aria-label": "Versions that answer" }, h("h2", {}, "Versions"), table),
    h("section", { "aria-label": "Send load" }, h("h2", {}, "Send load"),
      h("p", { class: "hint" }, "Sends requests with the model's example from this browser. It sends six at a time, so a few can share a run."),
      loadForm(models, left)));
  /** @type {Sample[]} */
  let samples = [];
  /** @type {Bounds} */
  let bounds = { durations: [], rows: [] };
  /** @type {Map<string, number>} */
  const totals = new Map();
  const take = (/** @type {string} */ kind, /** @type {any} */ data) => {
    if (kind === "bounds") { bounds = data; return; }
    const last = samples.length ? samples[samples.length - 1].at : 0; // a new connection begins with the whole history
    samples = [...samples, ...data.filter((/** @type {Sample} */ one) => one.at > last)].slice(-SHOWN);
    for (const sample of data) for (const one of sample.versions) totals.set(`${one.model}/${one.version}`, one.total);
    if (!samples.length) return;
    if (said.textContent) said.textContent = "";
    for (const chart of charts) fill(chart.element, ...drawn(chart, samples, bounds));
    fill(table, versionTable(samples.slice(-OVER), bounds, totals));
  };
  watch(take, left, said, asked);
}

/**
 * Read events, and reconnect after the server restarts.
 * @param {(kind: string, data: any) => void} take
 * @param {AbortSignal} left
 * @param {HTMLElement} status
 * @param {HTMLElement} asked The place for the key form.
 */
async function watch(take, left, status, asked) {
  while (!left.aborted) {
    try {
      await readEvents("playground/data/live", left, take);
    } catch (error) {
      if (left.aborted) return;
      fill(status, h("span", { class: "warning" }, sentence(error)));
      if (needsKey(error)) {
        await new Promise(done => fill(asked, keyForm(() => done(null), "metrics")));
        fill(asked);
        fill(status, "Waiting for the first second…");
        continue;
      }
    }
    await new Promise(done => setTimeout(done, 2000));
  }
}

/** A chart, with functions that compute its lines from a sample. @typedef {{title: string, unit: (value: number) => string, lines: Record<string, (sample: Sample, all: Counts, bounds: Bounds) => number>}} Chart */

/** @param {number} value */
const count = value => readable(Number(value.toFixed(value < 10 ? 1 : 0)));

/** @type {Chart[]} */
const CHARTS = [
  { title: "Requests a second", unit: count, lines: {
    answered: ({ seconds }, { codes }) => sum(codes) / seconds,
    failed: ({ seconds }, { codes }) => failures(codes) / seconds,
  } },
  { title: "Time in the server", unit: duration, lines: {
    p50: (_, { durations }, bounds) => quantile(0.5, durations, bounds.durations),
    p95: (_, { durations }, bounds) => quantile(0.95, durations, bounds.durations),
    p99: (_, { durations }, bounds) => quantile(0.99, durations, bounds.durations),
  } },
  { title: "Rows per run (upper bound)", unit: count, lines: {
    p50: (_, { rows }, bounds) => bucketOf(0.5, rows, bounds.rows),
    p95: (_, { rows }, bounds) => bucketOf(0.95, rows, bounds.rows),
  } },
  { title: "Requests in queues", unit: count, lines: { queued: ({ queued }) => queued } },
];

/** @param {Chart} chart @param {Sample[]} samples @param {Bounds} bounds */
function drawn({ title, unit, lines }, samples, bounds) {
  const added = samples.map(sample => together([...sample.versions, ...(sample.others ? [sample.others] : [])]));
  const values = Object.entries(lines).map(([name, of]) => ({ name, points: samples.map((sample, place) => of(sample, added[place], bounds)) }));
  const most = Math.max(...values.flatMap(({ points }) => points.filter(Number.isFinite)), 0) || 1;
  const last = samples[samples.length - 1].at;
  const x = (/** @type {Sample} */ { at }) => LEFT + Math.max(0, 1 - (last - at) / SHOWN) * (WIDTH - LEFT - 4);
  const y = (/** @type {number} */ value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const now = values.map(({ name, points }) => ({ name, value: points[points.length - 1] }));
  const text = now.map(({ name, value }) => `${name} ${Number.isFinite(value) ? unit(value) : "–"}`);
  return [
    h("figcaption", {}, h("b", {}, title), ...now.flatMap(({ name }, place) => [" ", h("span", { class: `key-${place}` }, name), " ", h("output", {}, text[place].slice(name.length + 1))])),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${text.join(", ")}` },
      ...[0, 0.5, 1].flatMap(part => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(part * most), y2: y(part * most) }),
        svg("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" }, part ? unit(part * most) : "0")]),
      svg("text", { x: LEFT, y: HEIGHT - 4 }, `${SHOWN / 60} min ago`),
      svg("text", { x: WIDTH - 4, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
      ...values.flatMap(({ points }, line) => strokes(samples, points).map(part =>
        svg("polyline", { class: `line line-${line}`, points: part.map(({ sample, value }) => `${x(sample).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })))),
  ];
}

/** Return the parts of a line that have values. @param {Sample[]} samples @param {number[]} points */
function strokes(samples, points) {
  /** @type {{sample: Sample, value: number}[][]} */
  const parts = [[]];
  points.forEach((value, place) => {
    if (Number.isFinite(value)) parts[parts.length - 1].push({ sample: samples[place], value });
    else if (parts[parts.length - 1].length) parts.push([]);
  });
  return parts.filter(part => part.length);
}

/** Summarize each version's last seconds. @param {Sample[]} samples @param {Bounds} bounds @param {Map<string, number>} totals */
function versionTable(samples, bounds, totals) {
  const seconds = samples.reduce((total, one) => total + one.seconds, 0);
  /** @type {Map<string, VersionCounts[]>} */
  const byVersion = new Map();
  for (const sample of samples)
    for (const one of sample.versions) byVersion.set(`${one.model}/${one.version}`, [...(byVersion.get(`${one.model}/${one.version}`) ?? []), one]);
  const names = [...totals.keys()].sort();
  if (!names.length) return h("p", { class: "hint" }, "No requests yet.");
  const cell = (/** @type {string} */ text) => h("td", {}, text);
  return h("table", {}, h("thead", {}, h("tr", {}, ...["Version", "Requests/s", "Failed/s", "p50", "p99", "Rows per run (p50)", "Variants", "Total"].map(title => h("th", { scope: "col" }, title)))),
    h("tbody", {}, ...names.map(name => {
      const [model] = name.split("/");
      const counts = together(byVersion.get(name) ?? []);
      const time = (/** @type {number} */ share) => { const value = quantile(share, counts.durations, bounds.durations); return Number.isFinite(value) ? duration(value) : "–"; };
      const rows = bucketOf(0.5, counts.rows, bounds.rows);
      const variants = Object.entries(counts.variants).filter(([variant]) => variant);
      return h("tr", {}, h("th", { scope: "row" }, link(`models/${encodeURIComponent(model)}`, name)),
        cell(readable(Math.round(sum(counts.codes) / seconds))), cell(readable(Math.round(failures(counts.codes) / seconds))), cell(time(0.5)), cell(time(0.99)),
        cell(Number.isFinite(rows) ? `≤ ${rows}` : "–"),
        cell(variants.map(([variant, count]) => `${variant} ${Math.round((100 * count) / sum(counts.variants))} %`).join(", ")),
        cell(String(totals.get(name))));
    })));
}
