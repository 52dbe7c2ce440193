// The chat page: the conversation, its settings and its history.

import { showFigures } from "./figures.js";
import { Message } from "./message.js";
import { canChat, modelName, stream } from "./server.js";
import * as storage from "./storage.js";

const element = (id) => document.getElementById(id);
const SAMPLING = [
  ...["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"],
  ...["frequency_penalty", "seed", "max_tokens"],
];
const SETTINGS = [...SAMPLING, "mode", "system"];
const empty = element("empty");
let conversation = start();
let drawn = []; // the messages on the page
let running = null; // the AbortController of the answer that is being written

function start() {
  return { id: `${Date.now()}-${Math.random()}`, messages: [] };
}

function key() {
  return element("key").value.trim();
}

async function showModel() {
  try {
    const model = await modelName(key());
    element("model").textContent = model;
    document.title = model;
    setChat(await canChat(key()));
  } catch (error) {
    if (error.status === 401) {
      element("settings").open = true;
      element("key").focus();
    } // the next message will say what else is wrong
  }
}

function setChat(possible) {
  element("hint").hidden = possible;
  element("mode").querySelector('[value="chat"]').disabled = !possible;
  if (!possible) element("mode").value = "complete";
  showMode();
}

function showMode() {
  const chat = element("mode").value === "chat";
  element("message").placeholder = chat ? "Message" : "Text to continue";
}

// Stays at the end while the reader is there.
function follow(change) {
  const talk = element("talk");
  const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
  change();
  if (atEnd) talk.scrollTop = talk.scrollHeight;
}

function add(role, content) {
  empty.remove();
  const message = new Message(role, content);
  element("talk").append(message.box);
  drawn.push(message);
  return message;
}

function request(messages) {
  const body = { stream: true, stream_options: { include_usage: true } };
  for (const name of SAMPLING) {
    if (element(name).value !== "") body[name] = Number(element(name).value);
  }
  if (element("mode").value === "complete") {
    return ["v1/completions", { ...body, max_tokens: body.max_tokens ?? null, prompt: messages.at(-1).content }];
  }
  const system = element("system").value.trim();
  const plain = messages.map(({ role, content }) => ({ role, content }));
  return [
    "v1/chat/completions",
    { ...body, messages: [...(system ? [{ role: "system", content: system }] : []), ...plain] },
  ];
}

function send(text) {
  const messages = conversation.messages;
  if (messages.at(-1)?.role === "user") messages.pop(); // it got no answer, and many templates want turns
  messages.push({ role: "user", content: text });
  add("user", text);
  return answer();
}

function regenerate() {
  if (running) return;
  if (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
  drawn.pop().box.remove();
  answer();
}

async function answer() {
  const own = conversation; // another may begin before this answer ends
  const message = add("assistant");
  message.box.classList.add("running");
  element("talk").scrollTop = element("talk").scrollHeight;
  const controller = new AbortController();
  setRunning(controller);
  const timing = { started: performance.now(), first: null, usage: null };
  let remark = "";
  try {
    remark = await read(message, request(own.messages), controller.signal, timing);
  } catch (error) {
    if (error.name === "AbortError") remark = " · stopped";
    else {
      if (error.code === "no_chat_template") setChat(false);
      follow(() => message.fail(error.message));
    }
  }
  message.box.classList.remove("running");
  const note = timing.first === null ? remark : figures(timing) + remark;
  follow(() => {
    message.draw();
    message.finish(note, regenerate);
  });
  if (message.content) own.messages.push({ role: "assistant", content: message.content, note });
  if (own.messages.length) storage.save(own);
  if (running === controller) setRunning(null);
}

// Write a streamed answer into its message; return a remark on its end.
async function read(message, [path, body], signal, timing) {
  let remark = "";
  let waiting = false;
  let more = false; // has come since the last drawing began
  const draw = () => {
    const started = performance.now();
    more = false;
    follow(() => message.draw());
    // A long answer takes long to draw. It is drawn less often then: most of the time is left to the rest.
    setTimeout(() => {
      waiting = false;
      if (more) schedule();
    }, 3 * (performance.now() - started));
  };
  const schedule = () => {
    more = true;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(draw);
  };
  for await (const event of stream(path, body, key(), signal)) {
    timing.usage = event.usage ?? timing.usage;
    const choice = event.choices[0];
    if (!choice) continue;
    const piece = choice.delta ? choice.delta.content : choice.text;
    const thought = choice.delta?.reasoning;
    if (piece || thought) timing.first ??= performance.now();
    if (thought) follow(() => message.addReasoning(thought));
    message.content += piece ?? "";
    if (piece) schedule();
    if (choice.finish_reason === "length") remark = " · cut at the token limit";
  }
  return remark;
}

// "12 tokens, first after 0.10 s, 30.1 tokens/s"
function figures({ started, first, usage }) {
  const wait = `first after ${((first - started) / 1000).toFixed(2)} s`;
  const count = usage?.completion_tokens;
  const seconds = (performance.now() - first) / 1000;
  const speed = count > 1 ? `, ${((count - 1) / seconds).toFixed(1)} tokens/s` : "";
  return count === undefined ? wait : `${count} tokens, ${wait}${speed}`;
}

function setRunning(controller) {
  running = controller;
  element("send").hidden = running !== null;
  element("stop").hidden = running === null;
  element("talk").setAttribute("aria-busy", running !== null);
}

// --- history

function show(other) {
  running?.abort();
  setRunning(null);
  conversation = other;
  drawn = [];
  element("talk").replaceChildren();
  if (!other.messages.length) element("talk").append(empty);
  for (const { role, content, note } of other.messages) {
    const message = add(role, content);
    if (role === "assistant") message.finish(note ?? "", regenerate);
  }
  element("talk").scrollTop = element("talk").scrollHeight;
}

function entry(stored) {
  const item = document.createElement("li");
  const open = document.createElement("button");
  open.className = "open";
  open.textContent = stored.messages[0]?.content.slice(0, 200) ?? "";
  open.title = new Date(stored.time).toLocaleString();
  open.addEventListener("click", () => {
    show(stored);
    element("history").close();
  });
  const forget = document.createElement("button");
  forget.textContent = "Delete";
  forget.addEventListener("click", () => {
    storage.remove(stored.id);
    showHistory();
  });
  item.append(open, forget);
  return item;
}

function showHistory() {
  const stored = storage.conversations();
  element("no-history").hidden = stored.length > 0;
  element("delete-all").hidden = stored.length === 0;
  element("conversations").replaceChildren(...stored.map(entry));
}

// --- controls

function grow() {
  const message = element("message");
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("message").value;
  if (running || !text.trim()) return;
  element("message").value = "";
  grow();
  send(text);
});
element("message").addEventListener("input", grow);
element("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !element("history").open) running?.abort();
});
element("stop").addEventListener("click", () => running?.abort());
element("new").addEventListener("click", () => {
  show(start());
  element("message").focus();
});
element("open-history").addEventListener("click", () => {
  showHistory();
  element("history").showModal();
});
element("close-history").addEventListener("click", () => element("history").close());
element("delete-all").addEventListener("click", () => {
  storage.removeAll();
  showHistory();
});
element("key").addEventListener("change", showModel);
element("mode").addEventListener("change", showMode);
element("markdown").addEventListener("change", () => drawn.forEach((message) => message.draw()));
element("settings").addEventListener("change", () => {
  storage.saveSettings(Object.fromEntries(SETTINGS.map((name) => [name, element(name).value])));
});
// iOS lays its keyboard over the page; the visible part is what is left to use.
globalThis.visualViewport?.addEventListener("resize", () => {
  if (visualViewport.scale === 1) document.body.style.height = `${visualViewport.height}px`;
});

for (const [name, value] of Object.entries(storage.settings())) {
  if (SETTINGS.includes(name)) element(name).value = value;
}
showMode();
showModel();
showFigures();
setInterval(showFigures, 1000);
