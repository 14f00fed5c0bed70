// Runs models in this browser: ONNX Runtime in WebAssembly, or on the visitor's GPU.

import { ROOT, ask, dataPathOf } from "./api.js";
import { sentence } from "./dom.js";
import { fromHalf, toHalf } from "./halves.js";
import { isText, sizeOf } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/** @type {Record<string, string>} Datatypes in ONNX Runtime. */
const TYPES = {
  FP32: "float32", FP64: "float64", FP16: "float16", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64",
  UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", BOOL: "bool", BYTES: "string",
};
const MAX_THREADS = 4;
const ERRORS = 3; // a level of ONNX Runtime; its warnings report operators on the CPU, which is normal here

/** Return true if the runtime supports the datatypes of a version. @param {any} version */
export const canRunHere = version => [...version.inputs, ...version.outputs].every((/** @type {import("./tensors.js").Spec} */ one) => one.datatype in TYPES);

/** Where models run in the browser. @typedef {"wasm" | "webgpu"} Backend */

/** Return the backends of this browser. A GPU is only detected on use. @returns {Backend[]} */
export const backends = () => ("gpu" in navigator ? ["wasm", "webgpu"] : ["wasm"]);

/**
 * An opened model. `refused` is the reason why the requested backend is not used, or "".
 * @typedef {{backend: Backend, threads: number, refused: string, run: (tensors: Tensor[]) => Promise<{outputs: Tensor[], seconds: number}>, release: () => Promise<void>}} Opened
 */

/** A model to open: the server's description of a version, its file names, and the release of ONNX Runtime. @typedef {{model: string, version: any, files: string[], release: string}} Source */

/** Receives the current step and the share that is done, or null if unknown. @typedef {(text: string, share: number | null) => void} Say */

/** @type {Record<Backend, {module: string, binary: string}>} Files of ONNX Runtime. */
const BUILDS = {
  wasm: { module: "ort.wasm.min.mjs", binary: "ort-wasm-simd-threaded.wasm" },
  webgpu: { module: "ort.webgpu.min.mjs", binary: "ort-wasm-simd-threaded.asyncify.wasm" },
};

const MAX_OPENED = 3; // models whose memory is kept

/** @type {Map<string, Promise<Opened>>} */
const opened = new Map();

/**
 * Open a version once. If WebGPU cannot open it, WebAssembly does.
 * @param {Source} source
 * @param {Backend} backend
 * @param {Say} say
 * @returns {Promise<Opened>}
 */
export function openHere(source, backend, say) {
  const key = JSON.stringify([source.model, source.version.version, source.version.files, backend]);
  let found = opened.get(key);
  if (!found) {
    found = backend === "wasm" ? open(source, backend, say) : open(source, backend, say).catch(async error => (
      { ...(await openHere(source, "wasm", say)), refused: sentence(error) }));
    opened.set(key, found);
    found.catch(() => opened.delete(key));
    for (const [oldest, one] of [...opened].slice(0, -MAX_OPENED)) {
      opened.delete(oldest);
      one.then(({ release }) => release(), () => {});
    }
  }
  return found;
}

/** @param {Source} source @param {Backend} backend @param {Say} say @returns {Promise<Opened>} */
async function open({ model, version, files, release }, backend, say) {
  if (backend === "webgpu" && !(await /** @type {any} */ (navigator).gpu.requestAdapter()))
    throw new Error("this browser supports WebGPU, but found no graphics adapter");
  const base = new URL(`playground/runtime/${release}/`, ROOT).href;
  const ort = await import(base + BUILDS[backend].module);
  const threads = globalThis.crossOriginIsolated ? Math.min(MAX_THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmPaths = base;
  ort.env.wasm.numThreads = threads;
  ort.env.wasm.wasmBinary ??= await loaded(base + BUILDS[backend].binary, `ONNX Runtime ${release} for browsers`, say);
  const [main] = files.filter(file => file === "model.onnx");
  if (!main) throw new Error("The server offers no model.onnx for this version.");
  const contents = [];
  for (const file of files) contents.push({ path: file, data: await fileOf(model, version, file, say) });
  say("Opening the model…", null);
  const session = await ort.InferenceSession.create(contents.find(one => one.path === main)?.data, {
    executionProviders: [backend],
    externalData: contents.filter(one => one.path !== main),
    logSeverityLevel: ERRORS,
  });
  let warm = false; // the first run compiles, which can take seconds with WebGPU
  return {
    backend,
    threads,
    refused: "",
    release: () => session.release(),
    run: async tensors => {
      const feeds = Object.fromEntries(tensors.map(one => [one.name, new ort.Tensor(TYPES[one.datatype], there(one), one.shape)]));
      if (!warm) await session.run(feeds);
      warm = true;
      const began = performance.now();
      const found = await session.run(feeds);
      const seconds = (performance.now() - began) / 1000;
      const outputs = [];
      for (const spec of version.outputs) {
        const value = found[spec.name];
        outputs.push({ name: spec.name, datatype: spec.datatype, shape: [...value.dims], data: here(spec.datatype, await value.getData()) });
      }
      return { outputs, seconds };
    },
  };
}

/** Return a file after checking that the server runs the same one. @param {string} model @param {any} version @param {string} file @param {Say} say */
async function fileOf(model, version, file, say) {
  const path = `${dataPathOf(model, version.version)}/files/${file.split("/").map(encodeURIComponent).join("/")}`;
  const data = await loaded(path, file, say);
  if (globalThis.crypto?.subtle) { // available over https and on this machine only
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    const hex = Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("");
    if (hex !== version.files[file]?.sha256) throw new Error(`${file} on the server's disk differs from the file it runs. Reload the page.`);
  }
  return data;
}

/**
 * Load a file and report its progress.
 * @param {string} path @param {string} name The displayed name. @param {Say} say
 */
async function loaded(path, name, say) {
  const response = await ask(path);
  const body = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).getReader();
  const total = response.headers.has("content-encoding") ? 0 : Number(response.headers.get("content-length")); // the encoded size is useless
  const text = `Loading ${name}${total ? ` (${total < 1e5 ? "under 0.1" : (total / 1e6).toFixed(total < 1e7 ? 1 : 0)} MB)` : ""}…`;
  const parts = [];
  let size = 0;
  for (;;) {
    say(text, total ? size / total : null);
    const { done, value } = await body.read();
    if (done) break;
    parts.push(value);
    size += value.length;
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Convert data to the runtime's form. @param {Tensor} tensor */
function there({ datatype, data, shape }) {
  if (isText(datatype)) return Array.from(data, String);
  if (datatype === "FP16") return Uint16Array.from({ length: sizeOf(shape) }, (_, place) => toHalf(Number(data[place])));
  return data;
}

/** Convert data for display. @param {string} datatype @param {any} data */
function here(datatype, data) {
  if (datatype === "FP16" && data instanceof Uint16Array) return Float32Array.from(data, fromHalf);
  return datatype === "BOOL" ? Array.from(data, Number) : data;
}
