// One message on the page: its text, what the model thought before it, figures and buttons.

import { rendered } from "./markdown.js";

const MARKDOWN = document.getElementById("markdown");

function create(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function button(name, title, action) {
  const node = create("button", name.toLowerCase(), name);
  node.type = "button";
  node.title = title;
  node.addEventListener("click", () => action(node));
  return node;
}

// Browsers have navigator.clipboard only for https and localhost.
async function copy(text, node) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  node.textContent = "Copied";
  setTimeout(() => (node.textContent = "Copy"), 1500);
}

function decorateCode(fragment) {
  for (const block of fragment.querySelectorAll("pre")) {
    const code = block.querySelector("code");
    const bar = create("div", "bar");
    bar.append(create("span", "language", code?.className.replace("language-", "")));
    bar.append(button("Copy", "Copy this code", (node) => copy(block.textContent, node)));
    const frame = create("div", "code");
    block.replaceWith(frame);
    frame.append(bar, block);
  }
}

export class Message {
  constructor(role, content = "") {
    this.box = create("div", `message ${role}`);
    this.role = role;
    this.text = create("div", "text");
    this.box.append(this.text);
    this.content = content;
    this.draw();
  }

  // Show the text so far. Every call renders all of it: a line may change what the lines before it mean.
  draw() {
    if (this.role === "assistant" && MARKDOWN.checked) {
      this.text.classList.add("markdown");
      const fragment = rendered(this.content);
      if (fragment.querySelectorAll) decorateCode(fragment);
      this.text.replaceChildren(fragment);
    } else {
      this.text.classList.remove("markdown");
      this.text.textContent = this.content;
    }
  }

  addReasoning(piece) {
    if (!this.reasoning) {
      const details = document.createElement("details");
      details.open = true;
      this.reasoning = create("div", "text");
      details.append(create("summary", "", "Thoughts"), this.reasoning);
      this.box.prepend(details);
    }
    this.reasoning.textContent += piece;
  }

  fail(reason) {
    this.box.classList.add("error");
    this.box.append(create("div", "reason", reason));
  }

  // The line and the buttons below a finished answer.
  finish(note, regenerate) {
    const line = create("div", "note");
    line.append(create("span", "", note));
    if (this.content) line.append(button("Copy", "Copy the answer", (node) => copy(this.content, node)));
    line.append(button("Regenerate", "Answer once more", regenerate));
    this.box.append(line);
  }
}
