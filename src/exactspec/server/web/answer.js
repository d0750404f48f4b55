/**
 * An answer as it comes: a node a token, appended and never touched again; tokens of one step and source make a run.
 *
 * Drafted runs can be reached by keyboard: one of them is in the tab order, the arrow keys go on from there (see
 * `spotlight.js`, which also shows where a run was copied from).
 */

import { make } from "./dom.js";
import { History } from "./history.js";
import { kindOf } from "./meter.js";

export class Answer {
  /** `messages`: as `History` takes them. */
  constructor(messages) {
    this.node = make("div", { class: "answer" });
    this.history = new History(messages);
    this.ids = [];
    this.nodes = [];
    this.runs = new Map(); // node -> {kind, source, span}
  }

  get text() {
    return this.node.textContent;
  }

  /** One event's `exactspec`: `prompt` in the first, `tokens`. */
  add({ prompt, tokens }) {
    if (prompt) this.history.begin(prompt, this.node);
    let run = null;
    let open = null;
    for (const token of tokens) {
      const kind = kindOf(token.source);
      const span = token.source_span;
      const key = `${token.source} ${span}`;
      if (run === null || run.key !== key) {
        run = { key, kind, source: token.source, span };
        open = make("span", { class: `run ${kind}` });
        if (kind !== "plain") {
          open.tabIndex = this.runs.size ? -1 : 0;
          this.runs.set(open, run);
        }
        this.node.append(open);
      }
      const node = make("span", {}, token.text);
      open.append(node);
      this.ids.push(token.id);
      this.nodes.push(node);
      this.history.push(token.text);
    }
  }

  /** Marks token `at`: from here on, the other answer goes on otherwise. */
  mark(at) {
    this.nodes[at]?.classList.add("differs");
  }

  /** The drafted run before (-1) or after (1) `node`, if there is one. */
  beside(node, step) {
    const all = [...this.runs.keys()];
    return all[all.indexOf(node) + step] ?? null;
  }
}
