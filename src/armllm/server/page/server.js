// What the page asks of the server: the API that every other client uses.

export class ServerError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function post(path, body, key, signal) {
  const headers = { "Content-Type": "application/json", ...authorization(key) };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (answer.ok) return answer;
  const error = await answer.json().then((document) => document.error, () => null);
  throw new ServerError(error?.message ?? `status ${answer.status}`, answer.status, error?.code);
}

function authorization(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// The model's name; ServerError 401 if a key is needed.
export async function modelName(key) {
  const answer = await fetch("v1/models", { headers: authorization(key) });
  if (!answer.ok) throw new ServerError(answer.statusText, answer.status);
  return (await answer.json()).data[0].id;
}

// Whether the model has a chat template.
export async function canChat(key) {
  try {
    await post("tokenize", { messages: [{ role: "user", content: "?" }] }, key);
  } catch (error) {
    return error.code !== "no_chat_template";
  }
  return true;
}

// Yields the documents of a streamed answer.
export async function* stream(path, body, key, signal) {
  const answer = await post(path, body, key, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError("the answer ends too early");
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const document = JSON.parse(data);
      if (document.error) throw new ServerError(document.error.message);
      yield document;
    }
  }
}
