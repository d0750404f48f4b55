/**
 * One question and what answers it: a single answer, or two side by side.
 *
 * `run` sends the requests and follows them; it returns when the turn has ended, however it ended. A refusal with a
 * time to wait is tried again by itself, a few times; all others leave a message and a button.
 */

import * as api from "./api.js";
import { Answer } from "./answer.js";
import { make } from "./dom.js";
import { Meter, SOURCES, shown } from "./meter.js";

const TRIES = 3;

export class Turn {
  /** `messages`: `{role, content, node}` before this turn; `page`: `settings`, `live` (meter or null), `tell` (words for
   * screen readers), `follow` (keep the end in view). */
  constructor(text, messages, page) {
    this.page = page;
    this.text = text;
    this.question = make("div", { class: "question" }, text);
    this.messages = [...messages, { role: "user", content: text, node: this.question }];
    this.body = make("div", { class: "body" });
    this.node = make("article", { class: "turn" }, this.question, this.body);
    this.answers = [];
    this.abort = null;
    this.reply = null; // the answer that later turns see
  }

  get busy() {
    return this.abort !== null;
  }

  stop() {
    this.abort?.abort();
  }

  /** Called by `run`: adds to `body`, throws as `follow` does. */
  async answer() {
    const { settings } = this.page;
    const pane = this.pane();
    this.body.append(pane.node);
    this.reply = pane.answer;
    await this.follow(settings.request(this.plain), pane);
  }

  get plain() {
    return this.messages.map(({ role, content }) => ({ role, content }));
  }

  async run() {
    this.abort = new AbortController();
    const { signal } = this.abort;
    try {
      for (let tried = 1; ; tried += 1) {
        try {
          this.body.replaceChildren();
          this.answers = [];
          this.reply = null;
          await this.answer();
          return;
        } catch (error) {
          if (!(error instanceof api.ApiFailure) || error.status !== 429 || tried === TRIES) throw error;
          await this.wait(error, signal);
        }
      }
    } catch (error) {
      this.failed(error);
    } finally {
      this.abort = null;
      this.page.live(null);
    }
  }

  /** Counts down to the next try. Raises AbortError when stopped. */
  async wait(error, signal) {
    const note = make("p", { class: "note", role: "status" });
    this.body.replaceChildren(note);
    for (let left = Math.ceil(error.retryAfter ?? 2); left > 0; left -= 1) {
      note.textContent = `${error.message} (trying again in ${left} s)`;
      await pause(1000, signal);
    }
  }

  failed(error) {
    for (const { node, meter } of this.answers) {
      if (meter.ended === null) meter.end(null);
      node.classList.remove("running");
    }
    if (error.name === "AbortError") {
      this.body.append(make("p", { class: "note" }, "Stopped."));
      this.page.tell("Stopped.");
      return;
    }
    const known = error instanceof api.ApiFailure;
    if (!known) console.error(error);
    const message = known ? error.message : "The page failed; its console says more.";
    const again = make("button", { type: "button" }, "Try again");
    again.addEventListener("click", () => this.page.again(this));
    const node = make("div", { class: "error", role: "alert" }, make("p", {}, message), again);
    if (error.status === 401) {
      const open = make("button", { type: "button" }, "Enter a key");
      open.addEventListener("click", () => this.page.settings.open());
      again.before(open);
    }
    this.body.append(node);
  }

  /** Room for one answer: its head, the answer, and what is said of it at the end. */
  pane(title = null) {
    const answer = new Answer(this.messages);
    const clock = make("output", { class: "clock" });
    const head = title ? make("header", {}, make("h3", {}, title), clock) : "";
    const foot = make("div", { class: "foot" });
    const node = make("section", { class: "pane running" }, head, answer.node, foot);
    const pane = { node, answer, foot, clock, meter: new Meter(), reason: null };
    this.answers.push(pane);
    return pane;
  }

  /** Sends a request and shows its stream in `pane`. Raises what `api.chat` raises. */
  async follow(body, pane) {
    const { settings, live, follow, tell } = this.page;
    pane.meter = new Meter();
    live(pane.meter, pane.clock);
    let final = null;
    for await (const event of api.chat(body, { key: settings.key, signal: this.abort.signal })) {
      for (const choice of event.choices) {
        if (choice.exactspec) {
          follow(() => pane.answer.add(choice.exactspec));
          pane.meter.add(choice.exactspec.tokens);
        }
        pane.reason = choice.finish_reason ?? pane.reason;
      }
      final = event.exactspec ?? final;
    }
    pane.meter.end(final);
    live(pane.meter, pane.clock);
    pane.node.classList.remove("running");
    follow(() => pane.foot.append(...summary(pane)));
    tell(`Answered: ${pane.meter.tokens} tokens, ${shown.speed(pane.meter.speed)} a second.`);
  }
}

/** Bar and figures under an answer. */
function summary({ meter, reason, answer }) {
  const bar = make("div", { class: "bar", "aria-hidden": "true" });
  const parts = make("ul", { class: "shares" });
  for (const [kind, name] of Object.entries(SOURCES)) {
    const count = meter.bySource[kind] ?? 0;
    if (!count) continue;
    const part = make("span", { class: kind });
    part.style.flexGrow = String(count);
    bar.append(part);
    parts.append(make("li", { class: kind }, make("i", {}), `${name} ${shown.share(count / meter.tokens)}`));
  }
  const figures = [
    `${shown.speed(meter.speed)} tokens/s`,
    `tau ${shown.tau(meter.tau)}`,
    `${meter.tokens} tokens in ${shown.seconds(meter.seconds)}`,
  ];
  const words = make("p", { class: "figures" }, figures.join(" · "));
  if (!answer.text) words.prepend("The model ended at once, with no text. ");
  if (reason === "length") words.append(make("span", { class: "cut" }, " · cut at the longest length"));
  return [bar, parts, words];
}

/** Raises AbortError as soon as `signal` does. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
