"use strict";
// Draws the graphs in #data: one at a time, in layers from its inputs down to its outputs.

const data = JSON.parse(document.getElementById("data").textContent);
const [canvas, view, details, search, fold] =
  ["canvas", "view", "details", "search", "fold"].map(id => document.getElementById(id));
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 30, GAP_X = 18, GAP_Y = 34, MOST_BENDS = 30000, FAR = 0.45;

const KINDS = [
  ["control", /^(If|Loop|Scan|SequenceMap)$/],
  ["compute", /Conv|MatMul|Gemm|Attention|^(LSTM|GRU|RNN|Einsum)$|^(TreeEnsemble|SVM|Linear)/],
  ["norm", /Norm|Softmax|Quantize/],
  ["function", /Relu|Gelu|Sigmoid|Tanh|Erf|Elu|Swish|Mish|Softplus|Clip|Exp|Log|Sqrt|Pow|^(Add|Sub|Mul|Div)$/],
  ["move", /Reshape|Transpose|Gather|Concat|Slice|Split|Squeeze|Shape|Cast|Expand|Identity|Flatten|Tile|Pad|Constant/],
];
const kindOf = op => (KINDS.find(([, pattern]) => pattern.test(op)) || ["other"])[0];
const short = (text, most = 26) => text.length > most ? text.slice(0, most - 1) + "…" : text;

let graph, items, edges, opened, scale = 1, left = 0, top_ = 0, chosen = null, at = 0;

// --- What is drawn: ends, nodes, and blocks in place of nodes that repeat

function collect() {
  const nodes = graph.nodes, blockAt = new Map();
  if (fold.checked) {
    for (const [start, length, times] of graph.blocks)
      for (let time = 0; time < times; time++) {
        const first = start + time * length;
        if (!opened.has(first)) blockAt.set(first, { length, time, times });
      }
  }
  items = [];
  const add = item => (item.place = items.length, items.push(item), item);
  for (const value of graph.inputs)
    add({ label: graph.values[value][0], kind: "end", end: "Input", in: [], out: [value] });
  for (let place = 0; place < nodes.length; place++) {
    const block = blockAt.get(place);
    if (!block) {
      const node = nodes[place];
      const kind = node.graphs.length ? "control" : kindOf(node.op);
      add({ label: node.op, kind, node, in: node.in, out: node.out });
      continue;
    }
    const inside = nodes.slice(place, place + block.length);
    const made = new Set(inside.flatMap(node => node.out));
    add({
      label: `block ${block.time + 1} of ${block.times} · ${block.length} nodes`, kind: "block",
      block: inside, first: place, in: [...new Set(inside.flatMap(node => node.in))].filter(one => !made.has(one)),
      out: [...made],
    });
    place += block.length - 1;
  }
  for (const value of graph.outputs)
    add({ label: graph.values[value][0], kind: "end", end: "Output", in: [value], out: [] });
}

// --- Where it is drawn

function layOut() {
  const maker = new Map();
  for (const item of items) for (const value of item.out) if (value) maker.set(value, item);
  const pairs = new Map();
  for (const item of items) {
    item.rank = 0; item.up = []; item.down = [];
    for (const value of item.in) {
      const from = maker.get(value);
      if (from && from !== item) pairs.set(from.place * items.length + item.place, { from, to: item });
    }
  }
  const links = [...pairs.values()];
  const incoming = items.map(() => []), outgoing = items.map(() => []);
  for (const link of links) { incoming[link.to.place].push(link); outgoing[link.from.place].push(link); }
  for (const item of items) // a graph's nodes are in order
    for (const { from } of incoming[item.place]) if (from.place < item.place) item.rank = Math.max(item.rank, from.rank + 1);
  for (let place = items.length - 1; place >= 0; place--) { // what has no inputs stands by its user
    const next = outgoing[place].map(link => link.to.rank);
    if (!incoming[place].length && next.length) items[place].rank = Math.max(0, Math.min(...least(next)) - 1);
  }
  const deepest = items.reduce((most, item) => Math.max(most, item.rank), 0);
  for (const item of items) if (item.end === "Output") item.rank = Math.max(item.rank, Math.min(deepest, item.rank));

  const layers = Array.from({ length: deepest + 1 }, () => []);
  for (const item of items) { item.width = Math.max(56, 14 + 7.2 * short(item.label).length); layers[item.rank].push(item); }
  // A long edge bends in each layer between; edges from one item bend together.
  let bends = 0;
  const bendOf = new Map();
  edges = [];
  for (const link of links) {
    const points = [link.from];
    if (link.to.rank - link.from.rank > 1 && bends < MOST_BENDS)
      for (let rank = link.from.rank + 1; rank < link.to.rank; rank++) {
        const key = link.from.place * (deepest + 1) + rank;
        let bend = bendOf.get(key);
        if (!bend) {
          bend = { rank, width: 4, up: [], down: [], bend: true };
          bendOf.set(key, bend); layers[rank].push(bend); bends++;
        }
        points.push(bend);
      }
    points.push(link.to);
    for (let place = 1; place < points.length; place++) {
      const [above, below] = [points[place - 1], points[place]];
      if (!above.down.includes(below)) { above.down.push(below); below.up.push(above); }
    }
    edges.push({ ...link, points });
  }
  arrange(layers);
}

const least = numbers => [numbers.reduce((one, other) => Math.min(one, other))];
const mean = (list, of) => list.reduce((sum, one) => sum + of(one), 0) / list.length;

function arrange(layers) {
  for (const layer of layers) layer.forEach((one, place) => { one.order = place; });
  for (let sweep = 0; sweep < 6; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      for (const one of layer) {
        const near = down ? one.up : one.down;
        one.wish = near.length ? mean(near, other => other.order) : one.order;
      }
      layer.sort((one, other) => one.wish - other.wish).forEach((one, place) => { one.order = place; });
    }
  }
  layers.forEach((layer, rank) => {
    let x = 0;
    for (const one of layer) { one.x = x + one.width / 2; x += one.width + GAP_X; one.y = rank * (HEIGHT + GAP_Y); }
    for (const one of layer) one.x -= x / 2;
  });
  for (let sweep = 0; sweep < 12; sweep++)
    for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) straighten(layer);
}

function straighten(layer) {
  // Each as near to the middle of its neighbours as those beside it allow.
  const wishes = layer.map(one => {
    const near = [...one.up, ...one.down];
    return near.length ? mean(near, other => other.x) : one.x;
  });
  const apart = place => (layer[place - 1].width + layer[place].width) / 2 + GAP_X;
  const right = [...wishes], leftward = [...wishes];
  for (let place = 1; place < layer.length; place++) right[place] = Math.max(right[place], right[place - 1] + apart(place));
  for (let place = layer.length - 2; place >= 0; place--) leftward[place] = Math.min(leftward[place], leftward[place + 1] - apart(place + 1));
  layer.forEach((one, place) => { one.x = (right[place] + leftward[place]) / 2; });
}

// --- Drawing

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function draw() {
  view.replaceChildren();
  const lines = element("g", {}, view), boxes = element("g", {}, view);
  for (const edge of edges) edge.shown = element("path", { class: "edge", d: path(edge.points) }, lines);
  for (const item of items) {
    const box = element("g", {
      class: `node ${item.kind}`, tabindex: 0, role: "button", transform: `translate(${item.x},${item.y})`,
    }, boxes);
    element("rect", {
      x: -item.width / 2, y: -HEIGHT / 2, width: item.width, height: HEIGHT, rx: item.kind === "end" ? 15 : 5,
    }, box);
    element("text", {}, box).textContent = short(item.label);
    box.dataset.place = item.place;
    item.shown = box;
  }
}

function path(points) {
  let text = "";
  points.forEach((point, place) => {
    const last = place === points.length - 1;
    if (!place) { text = `M${point.x},${point.y + HEIGHT / 2}`; return; }
    const before = points[place - 1], y = last ? point.y - HEIGHT / 2 : point.y;
    const from = before.bend ? before.y : before.y + HEIGHT / 2, middle = (from + y) / 2;
    text += `C${before.x},${middle} ${point.x},${middle} ${point.x},${y}`;
  });
  return text;
}

function move() {
  view.setAttribute("transform", `translate(${left},${top_}) scale(${scale})`);
  canvas.classList.toggle("far", scale < FAR && items.length > 300);
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const next = Math.min(4, Math.max(0.002, scale * factor));
  left = x - (x - left) * next / scale;
  top_ = y - (y - top_) * next / scale;
  scale = next;
  move();
}

function fit() {
  const bounds = { x0: Infinity, x1: -Infinity, y0: Infinity, y1: -Infinity };
  for (const item of items) {
    bounds.x0 = Math.min(bounds.x0, item.x - item.width / 2); bounds.x1 = Math.max(bounds.x1, item.x + item.width / 2);
    bounds.y0 = Math.min(bounds.y0, item.y); bounds.y1 = Math.max(bounds.y1, item.y);
  }
  if (!items.length) return;
  const [width, height] = [bounds.x1 - bounds.x0 + 40, bounds.y1 - bounds.y0 + HEIGHT + 40];
  scale = Math.min(1.2, canvas.clientWidth / width, canvas.clientHeight / height);
  left = canvas.clientWidth / 2 - scale * (bounds.x0 + bounds.x1) / 2;
  top_ = canvas.clientHeight / 2 - scale * (bounds.y0 + bounds.y1) / 2;
  move();
}

function begin() {
  // The whole where it can be read, else its beginning.
  fit();
  if (scale < 0.35 && items.length) {
    scale = 0.8;
    left = canvas.clientWidth / 2 - scale * items[0].x;
    top_ = 30 - scale * items[0].y;
    move();
  }
}

// --- Details

function say(name, text, parent = details, quiet = false) {
  const made = document.createElement(name);
  made.textContent = text;
  if (quiet) made.className = "quiet";
  parent.append(made);
  return made;
}

function offer(text, act) { say("button", text).addEventListener("click", act); }

function value(number) {
  const [name, type] = graph.values[number], weight = graph.weights[number];
  return `${name || "(none)"}  ${weight ? `weight ${weight}` : type}`.trim();
}

function choose(item) {
  if (chosen) chosen.shown.classList.remove("chosen");
  for (const edge of edges) edge.shown.classList.toggle("chosen", item && (edge.from === item || edge.to === item));
  chosen = item;
  details.replaceChildren();
  if (!item) { overview(); return; }
  item.shown.classList.add("chosen");
  if (item.end) { say("h2", item.end); say("p", value(item.end === "Input" ? item.out[0] : item.in[0])); return; }
  if (item.block) {
    say("h2", item.label);
    offer("unfold", () => { opened.add(item.first); redraw(); });
    say("h3", "Operators");
    const counts = new Map();
    for (const node of item.block) counts.set(node.op, (counts.get(node.op) || 0) + 1);
    for (const [op, count] of counts) say("p", `${count} × ${op}`);
    return;
  }
  const node = item.node;
  say("h2", node.op);
  if (node.domain) say("p", node.domain, details, true);
  if (node.name) say("p", node.name);
  if (node.provider) say("p", `runs on ${node.provider}`);
  for (const place of node.graphs) if (data.graphs[place]) offer(`open ${short(data.graphs[place].title, 40)}`, () => show(place));
  for (const [title, values] of [["Inputs", node.in], ["Outputs", node.out]]) {
    say("h3", title);
    for (const one of values.slice(0, 100)) say("p", value(one));
    if (values.length > 100) say("p", `and ${values.length - 100} more`, details, true);
  }
  if (node.attributes.length) say("h3", "Attributes");
  for (const [name, text] of node.attributes) say("p", `${name}: ${text}`);
}

function overview() {
  say("h2", short(graph.title, 60));
  say("p", `${graph.nodes.length.toLocaleString("en")} nodes`);
  say("h3", "Inputs");
  for (const one of graph.inputs.slice(0, 100)) say("p", value(one));
  say("h3", "Outputs");
  for (const one of graph.outputs.slice(0, 100)) say("p", value(one));
  say("p", "Choose a node for its details. Drag to move, turn the wheel to zoom.", details, true);
}

// --- What a reader does

function redraw() { collect(); layOut(); draw(); choose(null); begin(); }

function show(place) {
  graph = data.graphs[place];
  at = place;
  opened = new Set();
  const trail = document.getElementById("path");
  trail.replaceChildren();
  for (const one of place ? [0, place] : [])
    say("button", short(data.graphs[one].title, 40), trail).addEventListener("click", () => show(one));
  document.getElementById("folding").hidden = !graph.blocks.length;
  fold.checked = graph.blocks.length > 0;
  redraw();
}

function find() {
  const wanted = search.value.trim().toLowerCase(), found = document.getElementById("found");
  if (!wanted) { found.textContent = ""; return; }
  const has = node => node.op.toLowerCase().includes(wanted) || node.name.toLowerCase().includes(wanted) ||
    [...node.in, ...node.out].some(one => graph.values[one][0].toLowerCase().includes(wanted));
  const hits = items.filter(item => item.end ? item.label.toLowerCase().includes(wanted)
    : item.block ? item.block.some(has) : has(item.node));
  found.textContent = `${hits.length.toLocaleString("en")} found`;
  if (!hits.length) return;
  const next = hits[(hits.indexOf(chosen) + 1) % hits.length];
  choose(next);
  scale = Math.max(scale, 0.8);
  left = canvas.clientWidth / 2 - scale * next.x;
  top_ = canvas.clientHeight / 2 - scale * next.y;
  move();
}

canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
let drag = null;
canvas.addEventListener("pointerdown", event => { drag = { x: event.clientX, y: event.clientY, moved: false, on: event.target.closest(".node") }; });
window.addEventListener("pointermove", event => {
  if (!drag) return;
  if (Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 3) drag.moved = true;
  if (!drag.moved) return;
  canvas.classList.add("dragged");
  left += event.movementX; top_ += event.movementY;
  move();
});
window.addEventListener("pointerup", () => {
  if (drag && !drag.moved) choose(drag.on ? items[drag.on.dataset.place] : null);
  drag = null;
  canvas.classList.remove("dragged");
});
canvas.addEventListener("keydown", event => {
  if (event.key === "Enter" && event.target.closest(".node")) choose(items[event.target.closest(".node").dataset.place]);
});
document.addEventListener("keydown", event => {
  if (event.target === search) { if (event.key === "Enter") find(); return; }
  const act = { "+": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": fit }[event.key];
  if (act) act();
});
document.getElementById("in").addEventListener("click", () => zoom(1.3));
document.getElementById("out").addEventListener("click", () => zoom(1 / 1.3));
document.getElementById("fit").addEventListener("click", fit);
search.addEventListener("input", () => { if (!search.value) find(); });
fold.addEventListener("change", redraw);

document.getElementById("title").textContent = data.title;
document.title = data.title;
if (data.left_out) {
  const note = document.getElementById("note");
  note.textContent = data.left_out;
  note.hidden = false;
}
show(0);
