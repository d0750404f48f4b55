/** Making nodes. Text is always set as text: nothing in this page parses markup. */

/** `make("p", {class: "x"}, "text", node)`: attributes, then children. */
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function find(id) {
  return document.getElementById(id);
}

/** A range over characters `start` to `end` of the text in `node`; null if it has fewer. */
export function rangeIn(node, start, end) {
  const range = document.createRange();
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  let at = 0;
  let begun = false;
  while (walker.nextNode()) {
    const text = walker.currentNode;
    const after = at + text.length;
    if (!begun && start < after) {
      range.setStart(text, start - at);
      begun = true;
    }
    if (begun && end <= after) {
      range.setEnd(text, end - at);
      return range;
    }
    at = after;
  }
  return null;
}
