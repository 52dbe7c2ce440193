// A model's answer as a DOM fragment. The answer is untrusted: HTML in it is shown as text, and what the renderer
// makes of the rest is sanitized against a list of the tags and attributes that Markdown has.

import { Marked } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js"; // sets globalThis.DOMPurify

const HARMLESS_TAG = /^<\/?(?:br|kbd|sub|sup)\s*\/?>$/i;
const LANGUAGE = /^language-[\w+#.-]+$/;

const POLICY = {
  ALLOWED_TAGS: [
    ...["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "kbd", "li"],
    ...["ol", "p", "pre", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

function escape(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

const marked = new Marked({
  breaks: true,
  renderer: {
    html({ text, block }) {
      if (HARMLESS_TAG.test(text.trim())) return text;
      return block ? `<pre><code>${escape(text)}</code></pre>` : escape(text);
    },
    // An image would tell its site who reads the answer, so it becomes a link.
    image({ href, text }) {
      return `<a href="${escape(href)}">${escape(text || href)}</a>`;
    },
    checkbox({ checked }) {
      return checked ? "☑ " : "☐ ";
    },
  },
});

globalThis.DOMPurify.addHook("uponSanitizeAttribute", (_node, attribute) => {
  if (attribute.attrName === "class") attribute.keepAttr = LANGUAGE.test(attribute.attrValue);
});
globalThis.DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
});

// The text itself where Markdown cannot be rendered, such as brackets nested beyond the stack.
export function rendered(text) {
  try {
    return globalThis.DOMPurify.sanitize(marked.parse(text), POLICY);
  } catch {
    const paragraph = document.createElement("p");
    paragraph.textContent = text;
    return paragraph;
  }
}
