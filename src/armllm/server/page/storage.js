// What stays in this browser: conversations, newest first, and settings. The API key is not stored.

const CONVERSATIONS = "armllm.conversations";
const SETTINGS = "armllm.settings";
const MOST = 100;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // no storage, or not written by this page
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // no storage, or it is full
  }
}

export function conversations() {
  const stored = read(CONVERSATIONS, []);
  return Array.isArray(stored) ? stored : [];
}

// Store a conversation; the oldest ones go if there is no room.
export function save(conversation) {
  const others = conversations().filter((other) => other.id !== conversation.id);
  const all = [{ ...conversation, time: Date.now() }, ...others].slice(0, MOST);
  while (all.length && !write(CONVERSATIONS, all)) all.pop();
}

export function remove(id) {
  write(CONVERSATIONS, conversations().filter((other) => other.id !== id));
}

export function removeAll() {
  write(CONVERSATIONS, []);
}

export function settings() {
  return read(SETTINGS, {});
}

export function saveSettings(values) {
  write(SETTINGS, values);
}
