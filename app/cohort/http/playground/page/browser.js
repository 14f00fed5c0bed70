// The same model in this browser: ONNX Runtime in WebAssembly, or on the visitor's GPU.

import { ROOT, ask, dataPathOf } from "./api.js";
import { sentence } from "./dom.js";
import { fromHalf, toHalf } from "./halves.js";
import { isText, sizeOf } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/** @type {Record<string, string>} Names of datatypes there. */
const TYPES = {
  FP32: "float32", FP64: "float64", FP16: "float16", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64",
  UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", BOOL: "bool", BYTES: "string",
};
const MOST_THREADS = 4;
const ERRORS = 3; // of ONNX Runtime's levels: that some operators run on the CPU is no warning here

/** Whether the runtime has the datatypes of a version. @param {any} version */
export const canRunHere = version => [...version.inputs, ...version.outputs].every((/** @type {import("./tensors.js").Spec} */ one) => one.datatype in TYPES);

/** Where models run here. @typedef {"wasm" | "webgpu"} Backend */

/** The backends of this browser; whether a GPU is there shows when it is asked for. @returns {Backend[]} */
export const backends = () => ("gpu" in navigator ? ["wasm", "webgpu"] : ["wasm"]);

/**
 * A model that is open here. `refused` says why it is not on the backend that was asked for; "" where it is.
 * @typedef {{backend: Backend, threads: number, refused: string, run: (tensors: Tensor[]) => Promise<{outputs: Tensor[], seconds: number}>, release: () => Promise<void>}} Opened
 */

/** What is opened: a version as the server describes it, its files by their names, and the release of ONNX Runtime. @typedef {{model: string, version: any, files: string[], release: string}} Source */

/** Told what is being waited for, and which share of it is there; null where that is not known. @typedef {(text: string, share: number | null) => void} Say */

/** @type {Record<Backend, {module: string, binary: string}>} Files of ONNX Runtime's. */
const BUILDS = {
  wasm: { module: "ort.wasm.min.mjs", binary: "ort-wasm-simd-threaded.wasm" },
  webgpu: { module: "ort.webgpu.min.mjs", binary: "ort-wasm-simd-threaded.asyncify.wasm" },
};

const MOST_OPENED = 3; // models whose memory is kept

/** @type {Map<string, Promise<Opened>>} */
const opened = new Map();

/**
 * Open a version here; each is opened once. What cannot be opened by WebGPU is opened by WebAssembly.
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
    for (const [oldest, one] of [...opened].slice(0, -MOST_OPENED)) {
      opened.delete(oldest);
      one.then(({ release }) => release(), () => {});
    }
  }
  return found;
}

/** @param {Source} source @param {Backend} backend @param {Say} say @returns {Promise<Opened>} */
async function open({ model, version, files, release }, backend, say) {
  if (backend === "webgpu" && !(await /** @type {any} */ (navigator).gpu.requestAdapter()))
    throw new Error("this browser has WebGPU, but no graphics adapter for it");
  const base = new URL(`playground/runtime/${release}/`, ROOT).href;
  const ort = await import(base + BUILDS[backend].module);
  const threads = globalThis.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmPaths = base;
  ort.env.wasm.numThreads = threads;
  ort.env.wasm.wasmBinary ??= await loaded(base + BUILDS[backend].binary, `ONNX Runtime ${release} for browsers, once`, say);
  const [main] = files.filter(file => file === "model.onnx");
  if (!main) throw new Error("The server has no model.onnx of this version to give.");
  const contents = [];
  for (const file of files) contents.push({ path: file, data: await fileOf(model, version, file, say) });
  say("Opening the model…", null);
  const session = await ort.InferenceSession.create(contents.find(one => one.path === main)?.data, {
    executionProviders: [backend],
    externalData: contents.filter(one => one.path !== main),
    logSeverityLevel: ERRORS,
  });
  let warm = false; // the first run compiles: by WebGPU that can take seconds
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

/** A file, if it is the one that the server runs. @param {string} model @param {any} version @param {string} file @param {Say} say */
async function fileOf(model, version, file, say) {
  const path = `${dataPathOf(model, version.version)}/files/${file.split("/").map(encodeURIComponent).join("/")}`;
  const data = await loaded(path, file, say);
  if (globalThis.crypto?.subtle) { // only where the page came by https, or from this machine
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    const hex = Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("");
    if (hex !== version.files[file]?.sha256) throw new Error(`${file} on the server's disk is not the one that it runs; load the page again.`);
  }
  return data;
}

/**
 * What is at a path, told of as it comes.
 * @param {string} path @param {string} name What it is to people. @param {Say} say
 */
async function loaded(path, name, say) {
  const response = await ask(path);
  const body = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).getReader();
  const total = response.headers.has("content-encoding") ? 0 : Number(response.headers.get("content-length")); // of what is read here
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

/** Data as the runtime takes it. @param {Tensor} tensor */
function there({ datatype, data, shape }) {
  if (isText(datatype)) return Array.from(data, String);
  if (datatype === "FP16") return Uint16Array.from({ length: sizeOf(shape) }, (_, place) => toHalf(Number(data[place])));
  return data;
}

/** Data as it is shown. @param {string} datatype @param {any} data */
function here(datatype, data) {
  if (datatype === "FP16" && data instanceof Uint16Array) return Float32Array.from(data, fromHalf);
  return datatype === "BOOL" ? Array.from(data, Number) : data;
}
