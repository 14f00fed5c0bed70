// Calls a server by what openapi-typescript made of its document: node calls.ts URL
import createClient from "openapi-fetch";
import type { paths } from "./api.ts";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });
const features = [[5.1, 3.5, 1.4, 0.2]];

const byName = await client.POST("/models/iris/predict", { body: { inputs: { features } } });
const simple = await client.POST("/models/iris/predict", { body: { input: features } });
const rows = await client.POST("/v1/models/iris:predict", { body: { instances: features } });
const infer = await client.POST("/v2/models/iris/infer", {
  body: {
    inputs: [{ name: "features", datatype: "FP32", shape: [1, 4], data: features.flat() }],
    outputs: [{ name: "label" }],
  },
});
// @ts-expect-error: the model has no such input
const refused = await client.POST("/models/iris/predict", { body: { inputs: { featurs: [] } } });
const missing = await client.GET("/models/{model}", { params: { path: { model: "nobody" } } });

console.log(
  JSON.stringify({
    byName: byName.data,
    simple: simple.data,
    rows: rows.data,
    infer: infer.data,
    refused: refused.error,
    missing: missing.error,
  }),
);
