// Inputs that are pictures: drawn on a canvas, or read from a file.

import { h } from "./dom.js";
import { picture } from "./strokes.js";
import { isFloat, typed } from "./tensors.js";

/** @typedef {import("./tensors.js").Spec} Spec */
/** @typedef {import("./tensors.js").Tensor} Tensor */

/** The layout of a picture input. @typedef {{width: number, height: number, channels: number, last: boolean}} Layout */

const CANVAS = 280, PEN = 22, STEP = 10, ANY_SIZE = 224, MAX_SIDE = 2048, MAX_DRAWN = 64;

/** Scales from 0 to 1 to a picture's values. @type {Record<string, {title: string, of: (value: number, channel: number) => number}>} */
const SCALES = {
  unit: { title: "0 to 1", of: value => value },
  bytes: { title: "0 to 255", of: value => Math.round(value * 255) },
  signed: { title: "−1 to 1", of: value => value * 2 - 1 },
  imagenet: {
    title: "ImageNet's mean and deviation",
    of: (value, channel) => (value - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
  },
};

/**
 * Return the layout of a picture input, or null for any other.
 * @param {Spec} spec
 * @returns {Layout | null}
 */
export function layoutOf({ datatype, shape }) {
  if (!shape || shape.length !== 4 || !(isFloat(datatype) || datatype === "UINT8")) return null;
  if (typeof shape[0] === "number" && shape[0] !== 1) return null;
  const size = (/** @type {number} */ place) => (typeof shape[place] === "number" ? shape[place] : ANY_SIZE);
  const isCount = (/** @type {unknown} */ channels) => channels === 1 || channels === 3;
  const last = !isCount(shape[1]);
  if (last && !isCount(shape[3])) return null;
  const [channels, height, width] = last ? [size(3), size(1), size(2)] : [size(1), size(2), size(3)];
  if (Math.min(width, height) < 4 || Math.max(width, height) > MAX_SIDE) return null;
  return { width, height, channels, last };
}

/**
 * Make a form for a picture.
 * @param {Spec} spec
 * @param {Layout} layout
 * @returns {import("./forms.js").Form}
 */
export function pictureForm(spec, layout) {
  const { width, height, channels } = layout;
  const drawn = channels === 1 && Math.max(width, height) <= MAX_DRAWN;
  /** @type {Float32Array | null} Values from 0 to 1, by row, column and channel. */
  let values = null;
  const seen = h("canvas", { width, height, class: "seen", role: "img", "aria-label": "The model's input" });
  const said = h("p", { class: "hint", role: "alert" });
  const show = (/** @type {Float32Array | null} */ made) => { values = made; paint(seen, made, channels); };
  const board = drawn ? drawing(width, height, made => { file.value = ""; said.textContent = ""; show(made); }) : null;

  const scale = h("select", { id: "scale" }, ...Object.entries(SCALES).map(([name, { title }]) => h("option", { value: name }, title)));
  scale.value = spec.datatype === "UINT8" ? "bytes" : channels === 3 ? "imagenet" : "unit";

  const take = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    said.textContent = "";
    board?.clear();
    show(null); // the old values are not of this file
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      said.textContent = `"${file.name}" is not a picture that this browser can read. Use PNG, JPEG, WebP or GIF of a moderate size.`;
      return;
    }
    const made = drawn ? inkOf(bitmap, width, height) : coloursOf(bitmap, layout);
    bitmap.close();
    if (made) show(made);
    else said.textContent = `"${file.name}" shows no writing: its brightness is uniform.`;
  };
  const file = h("input", { type: "file", accept: "image/*", id: "picture", onchange: () => take(file.files?.[0]) });
  const element = h("div", { class: "picture" },
    board?.element,
    h("div", { class: "beside" },
      h("figure", {}, seen, h("figcaption", {}, `The model's input: ${width} × ${height}`)),
      h("label", { for: "picture" }, drawn ? "Or choose a picture, or drop it here" : "Choose a picture or drop it here"), file,
      isFloat(spec.datatype) && h("label", { for: "scale" }, "Values"), isFloat(spec.datatype) && scale),
    said);
  element.addEventListener("dragover", event => { event.preventDefault(); element.classList.add("over"); });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", event => {
    event.preventDefault();
    element.classList.remove("over");
    take(event.dataTransfer?.files[0]);
  });
  return {
    element,
    clear: () => { board?.clear(); file.value = ""; said.textContent = ""; show(null); },
    read: () => {
      if (!values) throw new Error(drawn ? "Draw something or choose a picture first." : "Choose a picture first, or drop one.");
      return [arranged(spec, layout, values, SCALES[scale.value].of)];
    },
  };
}

/**
 * Make a tensor of a picture.
 * @param {Spec} spec @param {Layout} layout
 * @param {Float32Array} values By row, column and channel.
 * @param {(value: number, channel: number) => number} scaled
 * @returns {Tensor}
 */
export function arranged(spec, { width, height, channels, last }, values, scaled) {
  const out = new Array(values.length);
  const size = width * height;
  for (let place = 0; place < size; place++)
    for (let channel = 0; channel < channels; channel++)
      out[last ? place * channels + channel : channel * size + place] = scaled(values[place * channels + channel], channel);
  const shape = last ? [1, height, width, channels] : [1, channels, height, width];
  return { name: spec.name, datatype: spec.datatype, shape, data: typed(spec, out) };
}

/**
 * Make a canvas to draw on with a pointer or the keyboard.
 * @param {number} width @param {number} height Size of the model's input.
 * @param {(values: Float32Array | null) => void} changed
 */
function drawing(width, height, changed) {
  const ratio = height / width;
  const size = { width: ratio > 1 ? Math.round(CANVAS / ratio) : CANVAS, height: ratio > 1 ? CANVAS : Math.round(CANVAS * ratio) };
  const canvas = h("canvas", { ...size, class: "draw", role: "img", "aria-label": "Draw", "aria-describedby": "drawing-keys", tabindex: "0" });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  /** @type {import("./strokes.js").Stroke[]} */
  let strokes = [];
  /** @type {import("./strokes.js").Stroke | null} */
  let stroke = null;
  let cursor = { x: size.width / 2, y: size.height / 4 };
  let keyboard = false, pointer = 0;

  const repaint = () => {
    context.clearRect(0, 0, size.width, size.height);
    const style = getComputedStyle(canvas);
    context.strokeStyle = context.fillStyle = style.color;
    Object.assign(context, { lineWidth: PEN, lineCap: "round", lineJoin: "round" });
    for (const one of strokes) {
      context.beginPath();
      one.forEach(({ x, y }, index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
      if (one.length === 1) context.lineTo(one[0].x, one[0].y);
      context.stroke();
    }
    if (keyboard) {
      context.strokeStyle = style.outlineColor;
      context.lineWidth = 2;
      context.strokeRect(cursor.x - 6, cursor.y - 6, 12, 12);
    }
  };
  let waiting = false;
  const update = () => {
    repaint();
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; changed(strokes.length ? picture(strokes, width, height) : null); });
  };
  const at = (/** @type {PointerEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * size.width, y: ((event.clientY - box.top) / box.height) * size.height };
  };
  const begin = (/** @type {{x: number, y: number}} */ point) => { stroke = [point]; strokes.push(stroke); update(); };
  canvas.addEventListener("pointerdown", event => {
    if (event.button || (stroke && !keyboard)) return; // another finger
    canvas.setPointerCapture(event.pointerId);
    pointer = event.pointerId;
    keyboard = false;
    begin(at(event));
  });
  canvas.addEventListener("pointermove", event => {
    if (!stroke || keyboard || event.pointerId !== pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) stroke.push(at(one));
    update();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, event => { if (!keyboard && /** @type {PointerEvent} */ (event).pointerId === pointer) stroke = null; });
  canvas.addEventListener("keydown", event => {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    const move = moves[event.key];
    if (move) {
      cursor = { x: Math.max(0, Math.min(size.width, cursor.x + move[0])), y: Math.max(0, Math.min(size.height, cursor.y + move[1])) };
      if (keyboard) stroke?.push({ ...cursor });
    } else if (event.key === " ") {
      if (stroke) stroke = null;
      else begin({ ...cursor });
    } else return;
    keyboard = true;
    event.preventDefault();
    update();
  });
  canvas.addEventListener("blur", () => { keyboard = false; stroke = null; repaint(); });
  onOtherColours(repaint);
  return {
    element: h("div", { class: "board" }, canvas, h("p", { class: "hint", id: "drawing-keys" }, "Keyboard: arrow keys move the pen, Space lowers and lifts it.")),
    clear: () => { strokes = []; stroke = null; repaint(); },
  };
}

/** Repaint when the color scheme changes, as long as the canvas exists. @param {() => void} repaint */
function onOtherColours(repaint) {
  const dark = matchMedia("(prefers-color-scheme: dark)"), held = new WeakRef(repaint); // the query lives as long as the page
  dark.addEventListener("change", function again() {
    const there = held.deref();
    if (there) there();
    else dark.removeEventListener("change", again);
  });
}

/** Show values from 0 to 1. @param {HTMLCanvasElement} canvas @param {Float32Array | null} values @param {number} channels */
function paint(canvas, values, channels) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  for (let place = 0; values && place < canvas.width * canvas.height; place++)
    for (let colour = 0; colour < 4; colour++)
      image.data[place * 4 + colour] = colour === 3 ? 255 : values[place * channels + (channels === 3 ? colour : 0)] * 255;
  context.putImageData(image, 0, 0);
}

/** Return the pixels of a part of a picture at another size. @param {ImageBitmap} bitmap @param {number} width @param {number} height @param {{x: number, y: number, width: number, height: number}} part */
function pixels(bitmap, width, height, part) {
  const canvas = new OffscreenCanvas(width, height);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  context.fillStyle = "white"; // behind transparent pixels
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, part.x, part.y, part.width, part.height, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

/** Return the middle of a picture, in colors or grey. @param {ImageBitmap} bitmap @param {Layout} layout */
function coloursOf(bitmap, { width, height, channels }) {
  const scale = Math.min(bitmap.width / width, bitmap.height / height);
  const part = { width: width * scale, height: height * scale, x: (bitmap.width - width * scale) / 2, y: (bitmap.height - height * scale) / 2 };
  const data = pixels(bitmap, width, height, part);
  const values = new Float32Array(width * height * channels);
  for (let place = 0; place < width * height; place++) {
    const [red, green, blue] = data.subarray(place * 4, place * 4 + 3);
    if (channels === 1) values[place] = grey(red, green, blue);
    else values.set([red / 255, green / 255, blue / 255], place * 3);
  }
  return values;
}

/** Return the brightness from 0 to 1. @param {number} red @param {number} green @param {number} blue */
const grey = (red, green, blue) => (0.299 * red + 0.587 * green + 0.114 * blue) / 255;

/**
 * Return the ink in a picture of handwriting, as if it were drawn here, or null without ink.
 * @param {ImageBitmap} bitmap @param {number} width @param {number} height
 */
function inkOf(bitmap, width, height) {
  const side = 96, scale = side / Math.max(bitmap.width, bitmap.height);
  const [wide, high] = [Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale))];
  const data = pixels(bitmap, wide, high, { x: 0, y: 0, width: bitmap.width, height: bitmap.height });
  const bright = Float32Array.from({ length: wide * high }, (_, place) => grey(data[place * 4], data[place * 4 + 1], data[place * 4 + 2]));
  const edge = bright.filter((_, place) => place < wide || place >= wide * (high - 1) || place % wide === 0 || place % wide === wide - 1);
  const paper = edge.slice().sort()[Math.floor(edge.length / 2)];
  const most = bright.reduce((far, one) => Math.max(far, Math.abs(one - paper)), 0);
  if (most < 0.1) return null;
  return fitted(bright.map(one => Math.max(0, Math.abs(one - paper) / most - 0.2) / 0.8), wide, high, width, height);
}

/**
 * Scale the ink to fill a picture, like strokes.
 * @param {Float32Array} ink @param {number} wide @param {number} high @param {number} width @param {number} height
 */
function fitted(ink, wide, high, width, height) {
  let [left, right, top, bottom] = [wide, -1, high, -1];
  ink.forEach((one, place) => {
    if (one < 0.3) return;
    const [x, y] = [place % wide, Math.floor(place / wide)];
    [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x + 1), Math.min(top, y), Math.max(bottom, y + 1)];
  });
  const room = Math.max(width, height) <= 16 ? 1 : 20 / 28;
  const scale = Math.max((right - left) / (width * room), (bottom - top) / (height * room)); // samples of `ink` per pixel
  const values = new Float32Array(width * height);
  const [x0, y0] = [(left + right - width * scale) / 2, (top + bottom - height * scale) / 2];
  const samples = 8;
  for (let place = 0; place < width * height; place++) {
    let sum = 0;
    for (let sample = 0; sample < samples * samples; sample++) {
      const x = Math.floor(x0 + ((place % width) + ((sample % samples) + 0.5) / samples) * scale);
      const y = Math.floor(y0 + (Math.floor(place / width) + (Math.floor(sample / samples) + 0.5) / samples) * scale);
      if (x >= 0 && x < wide && y >= 0 && y < high) sum += ink[y * wide + x];
    }
    values[place] = sum / samples ** 2;
  }
  return values;
}
