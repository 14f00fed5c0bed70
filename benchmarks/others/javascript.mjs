// onnxruntime-node behind Bun's own server, or behind Fastify where Node runs it. MODEL names the file.
import * as ort from "onnxruntime-node";

const port = Number(process.env.PORT);
const session = await ort.InferenceSession.create(process.env.MODEL, { executionProviders: ["cpu"] });
const inputs = Object.fromEntries(session.inputMetadata.map((one) => [one.name, one.type]));
const names = Object.keys(inputs);

function tensor(type, nested) {
  const shape = [];
  for (let part = nested; Array.isArray(part); part = part[0]) shape.push(part.length);
  const flat = shape.length === 2 && shape[0] === 1 ? nested[0] : nested.flat(Infinity);
  const data = type === "int64" ? BigInt64Array.from(flat, BigInt) : Float32Array.from(flat);
  return new ort.Tensor(type, data, shape);
}

function nested(values, shape) {
  let parts = Array.from(values, (value) => (typeof value === "bigint" ? Number(value) : value));
  for (const length of shape.slice(1).reverse()) {
    const cut = [];
    for (let at = 0; at < parts.length; at += length) cut.push(parts.slice(at, at + length));
    parts = cut;
  }
  return parts;
}

async function predict(body) {
  const feeds = {};
  for (const name of names) {
    feeds[name] = tensor(inputs[name], names.length === 1 ? body.input : body[name]);
  }
  const output = (await session.run(feeds))[session.outputNames[0]];
  return { prediction: nested(output.data, output.dims) };
}

if (globalThis.Bun) {
  Bun.serve({
    port,
    hostname: "127.0.0.1",
    async fetch(request) {
      if (request.method === "GET") return Response.json({ status: "healthy" });
      return Response.json(await predict(await request.json()));
    },
  });
} else {
  const { default: Fastify } = await import("fastify");
  const app = Fastify({ bodyLimit: 2 ** 26 });
  app.get("/health", async () => ({ status: "healthy" }));
  app.post("/predict", async (request) => predict(request.body));
  await app.listen({ port, host: "127.0.0.1" });
}
