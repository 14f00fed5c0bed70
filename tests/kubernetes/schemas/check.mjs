// Check custom resources with the validators of @kubernetes-models, which are made from the CRDs' own types.
//   node check.mjs FOLDER <objects.json    FOLDER has node_modules; prints a line for each problem
//
// The validators allow unknown fields. They read each field that they know, by its name or, in a
// map, by enumerating all; so a field that none of them read is unknown: additionalProperties false.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const GO = "ComGithub";
const TYPES = {
  "gateway.networking.k8s.io/v1": ["gateway-api", "IoK8sSigsGatewayApiApisV1"],
  "keda.sh/v1alpha1": ["keda", `${GO}KedacoreKedaV2ApisKedaV1alpha1`],
  "monitoring.coreos.com/v1": [
    "prometheus-operator",
    `${GO}PrometheusOperatorPrometheusOperatorPkgApisMonitoringV1`,
  ],
};

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const left = new Set(Array.isArray(value) ? [] : Object.keys(value));
  unread.push([path, left]);
  const wrapped = new Map();
  return new Proxy(value, {
    get(target, name) {
      left.delete(name);
      if (!Object.hasOwn(target, name)) return target[name];
      if (!wrapped.has(name)) wrapped.set(name, watched(target[name], `${path}/${name}`, unread));
      return wrapped.get(name);
    },
    ownKeys(target) {
      left.clear();
      return Reflect.ownKeys(target);
    },
  });
}

for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [name, prefix] = TYPES[object.apiVersion];
  const file = `${process.argv[2]}/node_modules/@kubernetes-models/${name}/_schemas/${prefix}${object.kind}.js`;
  const { validate } = await import(pathToFileURL(file));
  const where = `${object.kind} ${object.metadata.name}`;
  const unread = [];
  if (!validate(watched(object, "", unread)))
    for (const error of validate.errors)
      console.log(`${where}${error.instancePath}: ${error.keyword} ${JSON.stringify(error.params)}`);
  for (const [path, left] of unread)
    for (const field of left) console.log(`${where}${path}/${field}: unknown field`);
}
