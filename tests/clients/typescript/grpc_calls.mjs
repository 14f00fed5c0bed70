// Calls a server by grpc-js: node grpc_calls.mjs HOST:PORT PROTO; prints what came of it as JSON.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [target, proto] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, oneofs: true };
const { inference } = grpc.loadPackageDefinition(loader.loadSync(proto, options));
const limits = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };

const connect = (more = {}) =>
  new inference.GRPCInferenceService(target, grpc.credentials.createInsecure(), {
    ...limits,
    ...more,
  });

const request = (values, more = {}) => ({
  model_name: "large",
  inputs: [{ name: "x", datatype: "FP32", shape: [1, values.length] }],
  raw_input_contents: [Buffer.from(Float32Array.from(values).buffer)],
  ...more,
});

const read = (answer) => {
  const raw = answer.raw_output_contents[0];
  return Array.from({ length: raw.length / 4 }, (_, place) => raw.readFloatLE(4 * place));
};

const call = (client, method, message, metadata = {}, settings = {}) =>
  new Promise((resolve) => {
    const sent = new grpc.Metadata();
    for (const [name, value] of Object.entries(metadata)) sent.set(name, value);
    const told = {};
    client[method](message, sent, settings, (error, answer) => {
      told.code = error?.code ?? 0;
      told.details = error?.details ?? "";
      told.answer = answer;
      if (told.trailers) resolve(told);
    }).on("status", ({ metadata: trailers }) => {
      told.trailers = trailers.getMap();
      if ("code" in told) resolve(told);
    });
  });

const stream = (client, count, cancelAt = Infinity) =>
  new Promise((resolve) => {
    const ids = [];
    const open = client.ModelStreamInfer();
    open.on("data", ({ infer_response }) => {
      ids.push(Number(infer_response.id));
      if (ids.length === cancelAt) open.cancel();
    });
    open.on("error", () => {});
    open.on("status", ({ code }) => resolve({ code, ids }));
    for (let id = 0; id < count; id++) open.write(request([id], { id: String(id) }));
    if (cancelAt === Infinity) open.end();
  });

const client = connect();
const zipped = connect({ "grpc.default_compression_algorithm": 2 });
const many = Array.from({ length: 300_000 }, (_, place) => place % 1000);
const together = await Promise.all(
  Array.from({ length: 50 }, (_, place) => call(client, "ModelInfer", request([place]))),
);
const unknown = grpc.makeClientConstructor(
  {
    Nothing: {
      path: "/inference.GRPCInferenceService/Nothing",
      requestStream: false,
      responseStream: false,
      requestSerialize: (value) => value,
      requestDeserialize: (value) => value,
      responseSerialize: (value) => value,
      responseDeserialize: (value) => value,
    },
  },
  "Unknown",
);

const told = {
  together: together.map(({ answer }) => read(answer)),
  stream: await stream(client, 200),
  cancelled: await stream(client, 50, 3),
  late: (
    await call(client, "ModelInfer", { ...request([1, 2, 3, 4]), model_name: "slow" }, {}, {
      deadline: Date.now() + 100,
    })
  ).code,
  missing: await call(client, "ModelInfer", request([1], { model_name: "nobody" })),
  unknown: (
    await call(new unknown(target, grpc.credentials.createInsecure()), "Nothing", Buffer.alloc(0))
  ).code,
  traced: (await call(client, "ModelInfer", request([1]), { "x-request-id": "mine" })).trailers,
  zipped: read((await call(zipped, "ModelInfer", request(many.slice(0, 1000)))).answer).length,
  many: read((await call(client, "ModelInfer", request(many))).answer).every(
    (value, place) => value === many[place],
  ),
  live: (await call(client, "ServerLive", {})).answer,
};
console.log(JSON.stringify(told));
process.exit(0);
