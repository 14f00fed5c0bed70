// Server-sent events, read with fetch, because the browser's EventSource sends no key.

import { ask } from "./api.js";

const SILENCE_MS = 10_000; // events arrive each second; after this time the connection is considered lost

/**
 * Read events until the server or the signal ends them.
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {(kind: string, data: any) => void} take Receives each event's kind and JSON data.
 */
export async function readEvents(path, signal, take) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await ask(path, { signal: AbortSignal.any([signal, silence.signal]) }, "metrics");
    await readStream(response, take, () => { clearTimeout(timer); timer = setTimeout(() => silence.abort(), SILENCE_MS); });
  } catch (error) {
    throw silence.signal.aborted && !signal.aborted ? new Error("No data from the server. Reconnecting…") : error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Read the events of a response until its end.
 * @param {Response} response @param {(kind: string, data: any) => void} take @param {() => void} [received] Called for each received part.
 */
export async function readStream(response, take, received = () => {}) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    received();
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      let kind = "message", data = "";
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      text = text.slice(end + 2);
      if (data && data !== "[DONE]") take(kind, JSON.parse(data)); // the mark is OpenAI's
    }
  }
}
