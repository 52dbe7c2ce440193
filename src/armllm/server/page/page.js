// The chat page: talks to the same API as every other client, and reads the server's state from /metrics.

const element = (id) => document.getElementById(id);
let conversation = [];
const empty = element("empty");
let running = null; // the AbortController of the answer that is being written

function headers() {
  const key = element("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// --- the server's state

const before = { tokens: null, time: 0 };

// Sum of a metric over its labels.
function metric(text, name) {
  let sum = null;
  for (const line of text.split("\n")) {
    if (line.startsWith(`${name}{`) || line.startsWith(`${name} `)) {
      sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(" ")));
    }
  }
  return sum;
}

async function showFigures() {
  if (document.hidden) return;
  try {
    const answer = await fetch("metrics");
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text();
    const tokens = metric(text, "vllm:generation_tokens_total");
    const now = performance.now();
    if (before.tokens !== null) {
      const speed = Math.max(0, (tokens - before.tokens) / ((now - before.time) / 1000));
      element("speed").textContent = speed.toFixed(speed < 10 ? 1 : 0);
    }
    before.tokens = tokens;
    before.time = now;
    element("running").textContent = metric(text, "vllm:num_requests_running");
    element("waiting").textContent = metric(text, "vllm:num_requests_waiting");
    const used = metric(text, "vllm:kv_cache_usage_perc");
    element("cache").value = used;
    element("cache-text").textContent = `${(100 * used).toFixed(1)} %`;
  } catch {
    before.tokens = null;
    for (const id of ["speed", "running", "waiting", "cache-text"]) element(id).textContent = "–";
  }
}

async function showModel() {
  try {
    const answer = await fetch("v1/models", { headers: headers() });
    if (answer.status === 401) {
      element("settings").open = true;
      element("key").focus();
      return;
    }
    const model = (await answer.json()).data[0].id;
    element("model").textContent = model;
    document.title = model;
  } catch {
    // the next message will say what is wrong
  }
}

// --- the conversation

function add(role) {
  empty.remove();
  const box = document.createElement("div");
  box.className = `said ${role}`;
  const text = document.createElement("div");
  text.className = "text";
  box.append(text);
  element("talk").append(box);
  return box;
}

// Stays at the end while the reader is there.
function follow(change) {
  const talk = element("talk");
  const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
  change();
  if (atEnd) talk.scrollTop = talk.scrollHeight;
}

function showReasoning(box, piece) {
  let details = box.querySelector("details");
  if (!details) {
    details = document.createElement("details");
    details.open = true;
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    const text = document.createElement("div");
    text.className = "text";
    details.append(summary, text);
    box.prepend(details);
  }
  details.querySelector(".text").textContent += piece;
}

// Yields the documents of a stream of server-sent events.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function request(text) {
  const chat = element("mode").value === "chat";
  const body = { stream: true, stream_options: { include_usage: true } };
  if (element("temperature").value !== "") body.temperature = Number(element("temperature").value);
  if (element("max-tokens").value !== "") body.max_tokens = Number(element("max-tokens").value);
  if (!chat) return ["v1/completions", { ...body, max_tokens: body.max_tokens ?? null, prompt: text }];
  const system = element("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation];
  return ["v1/chat/completions", { ...body, messages }];
}

async function ask(text) {
  add("user").querySelector(".text").textContent = text;
  const own = conversation; // another may have begun before this answer ends
  own.push({ role: "user", content: text });
  const box = add("assistant");
  const shown = box.lastElementChild;
  box.classList.add("running");
  element("talk").scrollTop = element("talk").scrollHeight;
  running = new AbortController();
  toggle(true);
  const started = performance.now();
  let first = null;
  let usage = null;
  let said = "";
  let note = "";
  try {
    const [path, body] = request(text);
    const answer = await fetch(path, {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(body),
      signal: running.signal,
    });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      const piece = choice.delta ? choice.delta.content : choice.text;
      const thought = choice.delta?.reasoning;
      if (piece || thought) first ??= performance.now();
      follow(() => {
        if (thought) showReasoning(box, thought);
        if (piece) shown.textContent += piece;
      });
      said += piece ?? "";
      if (choice.finish_reason === "length") note = " · cut at the token limit";
    }
  } catch (error) {
    if (error.name === "AbortError") {
      note = " · stopped";
    } else {
      box.classList.add("error");
      follow(() => (shown.textContent += `${said ? "\n" : ""}${error.message}`));
    }
  }
  box.classList.remove("running");
  if (said) own.push({ role: "assistant", content: said });
  else own.pop();
  if (first !== null) follow(() => box.append(figures(started, first, usage, note)));
  running = null;
  toggle(false);
}

// "12 tokens, first after 0.10 s, 30.1 tokens/s"
function figures(started, first, usage, note) {
  const line = document.createElement("div");
  line.className = "note";
  const wait = `first after ${((first - started) / 1000).toFixed(2)} s`;
  const count = usage?.completion_tokens;
  const seconds = (performance.now() - first) / 1000;
  const speed = count > 1 ? `, ${((count - 1) / seconds).toFixed(1)} tokens/s` : "";
  line.textContent = (count === undefined ? wait : `${count} tokens, ${wait}${speed}`) + note;
  return line;
}

function toggle(busy) {
  element("send").hidden = busy;
  element("stop").hidden = !busy;
}

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
  ask(text);
});

element("message").addEventListener("input", grow);
element("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("form").requestSubmit();
  }
});
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  element("talk").replaceChildren(empty);
  element("message").focus();
});
element("key").addEventListener("change", showModel);

showModel();
showFigures();
setInterval(showFigures, 1000);
