/**
 * Where a span of an answer's history is on the page.
 *
 * The history is the prompt's tokens, then the answer's. The prompt is what the model's template made of the messages:
 * each message's text is looked for in it, in order, and is tied to the node that shows it.
 */

import { rangeIn } from "./dom.js";

const AROUND = 60; // characters shown on either side of a source

export class History {
  /** `messages`: `{content, node}` in order; `node` shows just the content, or is null. */
  constructor(messages) {
    this.messages = messages;
    this.text = "";
    this.starts = [0]; // of each token, in `text`; one more at the end
    this.places = []; // {from, to, node, offset}: characters of `text` that `node` shows, from its `offset` on
    this.prompt = 0;
  }

  /** The prompt's tokens; `answer`: the node that the answer's tokens go to. */
  begin(pieces, answer) {
    for (const piece of pieces) this.push(piece);
    this.prompt = pieces.length;
    let at = 0;
    for (const { content, node } of this.messages) {
      const text = content.trim(); // templates may trim
      const from = text ? this.text.indexOf(text, at) : -1;
      if (from < 0) continue;
      at = from + text.length;
      if (node) this.places.push({ from, to: at, node, offset: content.indexOf(text) });
    }
    this.places.push({ from: this.text.length, to: Infinity, node: answer, offset: 0 });
  }

  push(piece) {
    this.text += piece;
    this.starts.push(this.text.length);
  }

  /** Tokens `start` to `end`: the text with what is around it, ranges on the page, and where it is in words. */
  locate([start, end]) {
    const from = this.starts[Math.max(0, start)];
    const to = this.starts[Math.min(end, this.starts.length - 1)];
    const ranges = [];
    for (const place of this.places) {
      const first = Math.max(from, place.from);
      const last = Math.min(to, place.to);
      if (first >= last) continue;
      const shift = place.offset - place.from;
      const range = rangeIn(place.node, first + shift, last + shift);
      if (range) ranges.push(range);
    }
    return {
      before: this.text.slice(Math.max(0, from - AROUND), from),
      text: this.text.slice(from, to),
      after: this.text.slice(to, to + AROUND),
      where: start >= this.prompt ? "this answer" : "the conversation",
      ranges,
    };
  }
}
