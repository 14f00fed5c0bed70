// A chat with a language model. Its answers are shown as text, never parsed as HTML.

import { keyForm } from "./access.js";
import { ask, needsKey } from "./api.js";
import { duration, fill, h, readable, sentence } from "./dom.js";
import { readStream } from "./events.js";

/** A message as the API has it. @typedef {{role: "user" | "assistant", content: string}} Message */

/** Description of a language model by the server. @typedef {{context_length: number, chat: boolean, cache_bytes: number | null}} About */

/**
 * Make a chat with a model's default version.
 * @param {string} name @param {About} about @param {AbortSignal} left Aborted when the page is left.
 */
export function chatBox(name, about, left) {
  /** @type {Message[]} */
  let said = [];
  let running = new AbortController();
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const status = h("p", { role: "status", class: "hint" });
  const below = h("div", {});
  const message = h("textarea", { id: "message", rows: "3" });
  const temperature = numberField("temperature", "0", "2", "0.1", "0.7");
  const most = numberField("max-tokens", "1", String(about.context_length), "1", String(Math.min(256, about.context_length)));
  const send = h("button", { type: "submit", class: "main" }, "Send");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running.abort() }, "Stop");
  const again = h("button", { type: "button", onclick: () => {
    running.abort();
    said = [];
    fill(log);
    fill(status);
    fill(below);
    message.focus();
  } }, "New chat");

  const reply = async () => {
    running.abort();
    const mine = running = new AbortController();
    const signal = AbortSignal.any([left, mine.signal]);
    const asked = said;
    const answer = h("p", { class: "text" });
    const entry = h("div", { class: "message assistant" }, h("h3", {}, name), answer);
    log.append(entry);
    log.setAttribute("aria-busy", "true"); // a screen reader reads the answer once, as a whole
    stop.hidden = false;
    send.disabled = true;
    fill(status, "Waiting for the answer…");
    fill(below);
    let text = "";
    const take = (/** @type {string} */ more) => {
      const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
      text += more;
      answer.append(more);
      if (follows) log.scrollTop = log.scrollHeight;
    };
    let note = "";
    try {
      fill(status, await stream(name, about.chat, asked, { temperature: Number(temperature.value), max_tokens: Number(most.value) }, signal, take));
    } catch (error) {
      if (left.aborted || said !== asked) return; // another chat began
      note = mine.signal.aborted ? "Stopped." : sentence(error);
      fill(status, mine.signal.aborted ? note : "");
      if (!mine.signal.aborted) {
        entry.append(h("p", { class: "warning", role: "alert" }, text ? `The answer was cut: ${note}` : note));
        fill(below, needsKey(error) && keyForm(reply));
      }
    } finally {
      if (running === mine) {
        log.removeAttribute("aria-busy");
        send.disabled = false;
        if (document.activeElement === stop) message.focus();
        stop.hidden = true;
      }
    }
    if (said !== asked) return;
    if (text) said.push({ role: "assistant", content: text });
    else if (note) { // the question can be asked again
      const question = said.pop();
      message.value ||= question?.content ?? "";
    }
  };
  const onSend = () => {
    const content = message.value.trim();
    if (!content || send.disabled) return;
    said.push({ role: "user", content });
    log.append(h("div", { class: "message user" }, h("h3", {}, "You"), h("p", { class: "text" }, content)));
    log.scrollTop = log.scrollHeight;
    message.value = "";
    reply();
  };
  message.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    onSend();
  });
  return h("section", { class: "chat", "aria-label": "Chat" }, log, status, below,
    h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); onSend(); } },
      h("label", { for: "message" }, about.chat ? "Message" : "Beginning of a text"), message,
      h("p", { class: "buttons" }, send, stop, again,
        h("label", { for: "temperature" }, "Temperature"), temperature,
        h("label", { for: "max-tokens" }, "Max tokens"), most)));
}

/** @param {string} id @param {string} min @param {string} max @param {string} step @param {string} value */
const numberField = (id, min, max, step, value) => h("input", { id, type: "number", min, max, step, value });

/**
 * Ask for an answer, and pass its text on as it arrives. Returns a sentence about its speed.
 * Raises Refused, or an Error if the stream is cut.
 * @param {string} model @param {boolean} chat False for a model without a chat template, which continues the last message.
 * @param {Message[]} messages @param {{temperature: number, max_tokens: number}} options
 * @param {AbortSignal} signal @param {(text: string) => void} take
 */
async function stream(model, chat, messages, options, signal, take) {
  const prompt = chat ? { messages } : { prompt: messages.at(-1)?.content };
  const body = JSON.stringify({ model, ...prompt, ...options, stream: true, stream_options: { include_usage: true } });
  const began = performance.now();
  const response = await ask(chat ? "v1/chat/completions" : "v1/completions", { method: "POST", headers: { "content-type": "application/json" }, body, signal });
  let first = 0, finish = "", tokens = 0;
  await readStream(response, (kind, data) => {
    if (data.error) throw new Error(data.error.message ?? String(data.error));
    const [choice] = data.choices ?? [];
    const text = choice?.delta?.content ?? choice?.text;
    if (text) {
      first ||= performance.now();
      take(text);
    }
    finish = choice?.finish_reason ?? finish;
    tokens = data.usage?.completion_tokens ?? tokens;
  });
  if (!finish) throw new Error("the connection ended.");
  const end = performance.now();
  const rate = first && end > first && tokens > 1 ? `, ${readable(Math.round(1000 * (tokens - 1) / (end - first)))} a second` : "";
  const version = response.headers.get("x-model-version");
  return [
    `${tokens} tokens, the first after ${duration(((first || end) - began) / 1000)}${rate}.`,
    finish === "length" && "The answer ended at its limit of tokens.",
    version && `Version ${version}.`,
  ].filter(Boolean).join(" ");
}
