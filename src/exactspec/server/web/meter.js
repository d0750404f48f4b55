/**
 * Counts of one answer while it comes: tokens, steps, tokens by source, and the clock.
 *
 * One event with tokens is one step. Speed: while the answer comes, tokens after the first step over the time since
 * then, by the page's clock; the server's own figures of the decoding take their place at the end.
 */

const COPIES = new Set(["copy", "copyspec", "prediction", "store"]);

/** How sources are shown: class name, and a name for people. Several of the API's names are one to a reader. */
export const SOURCES = {
  copy: "copied",
  recycle: "recycled",
  longspec: "draft layer",
  model: "draft model",
  other: "drafted otherwise",
  plain: "the model's own",
};

export function kindOf(source) {
  if (source === "target") return "plain";
  if (COPIES.has(source)) return "copy";
  return Object.hasOwn(SOURCES, source) ? source : "other";
}

export class Meter {
  constructor() {
    this.tokens = 0;
    this.steps = 0;
    this.bySource = {};
    this.begun = performance.now();
    this.ended = null;
    this.first = null;
    this.firstTokens = 0;
    this.last = null;
    this.final = null;
  }

  /** Tokens of one step. */
  add(tokens) {
    const now = performance.now();
    this.steps += 1;
    this.tokens += tokens.length;
    for (const token of tokens) {
      const kind = kindOf(token.source);
      this.bySource[kind] = (this.bySource[kind] ?? 0) + 1;
    }
    if (this.first === null) {
      this.first = now;
      this.firstTokens = this.tokens;
    }
    this.last = now;
  }

  /** The answer has ended; `final`: the server's figures, if it gave them. */
  end(final) {
    this.ended = performance.now();
    this.final = final ?? null;
  }

  /** Since the request was sent. */
  get seconds() {
    return ((this.ended ?? performance.now()) - this.begun) / 1000;
  }

  /** Tokens a second, or null where nothing can be said yet. */
  get speed() {
    if (this.final) return this.final.decode_tokens_per_s;
    const seconds = (this.last - this.first) / 1000;
    return this.steps > 1 && seconds > 0 ? (this.tokens - this.firstTokens) / seconds : null;
  }

  /** Tokens a step. */
  get tau() {
    if (this.final) return this.final.tau;
    return this.steps ? this.tokens / this.steps : null;
  }

  /** Share of tokens that were copied, 0 to 1. */
  get copied() {
    return this.tokens ? (this.bySource.copy ?? 0) / this.tokens : null;
  }
}

export const shown = {
  speed: (value) => (value === null ? "–" : value.toFixed(value < 100 ? 1 : 0)),
  tau: (value) => (value === null ? "–" : value.toFixed(2)),
  share: (value) => (value === null ? "–" : `${Math.round(100 * value)}%`),
  seconds: (value) => `${value.toFixed(value < 10 ? 2 : 1)} s`,
};
