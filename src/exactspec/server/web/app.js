/** The page: what it is put together from, and the way from one state to the next. */

import * as api from "./api.js";
import { Comparison } from "./compare.js";
import { find, make } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { shown } from "./meter.js";
import { Settings } from "./settings.js";
import { Spotlight } from "./spotlight.js";
import { Turn } from "./turn.js";

const ASK_MS = 1000; // how often the state is asked for while the server is not ready
const LOOK_MS = 30000; // and while it is
const SHOW_MS = 100; // how often figures change

class Page {
  constructor() {
    this.settings = new Settings(() => this.watch());
    this.turns = [];
    this.ready = false;
    this.asking = null;
    this.name = null;
    this.meter = null;
    this.clock = null;
    this.scroll = find("scroll");
    this.log = find("log");
    this.text = find("text");
    this.spotlight = new Spotlight({
      log: this.log,
      tip: find("tip"),
      scroller: this.scroll,
      answerOf: (run) => this.answerOf(run),
    });
    this.wire();
    this.watch();
  }

  wire() {
    find("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.text.addEventListener("input", () => this.update());
    find("stop").addEventListener("click", () => this.stop());
    find("new").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || find("settings").open) return;
      if (this.spotlight.open) this.spotlight.hide();
      else this.stop();
    });
    for (const input of document.querySelectorAll("input[name=mode]")) {
      input.checked = input.value === this.settings.values.mode;
      input.addEventListener("change", () => this.setMode(input.value));
    }
    this.setMode(this.settings.values.mode);
    for (const { title, text } of EXAMPLES) {
      const button = make("button", { type: "button" }, make("strong", {}, title), make("span", {}, text.split("\n")[0]));
      button.addEventListener("click", () => {
        this.text.value = text;
        this.update();
        this.text.focus();
      });
      find("examples").append(make("li", {}, button));
    }
    this.text.focus();
  }

  setMode(mode) {
    this.settings.set("mode", mode);
    document.body.dataset.mode = mode;
  }

  // -- the server's state ----------------------------------------------------------------------------------------

  /** Ask for the state, now and from now on. */
  async watch() {
    clearTimeout(this.asking);
    const state = await api.health();
    this.ready = state === "ok";
    if (this.ready && this.name === null) await this.meet();
    else if (!this.ready) this.say(STATES[state] ?? `The server says: ${state}.`, state === "gone" || state === "broken");
    else this.say(null);
    find("dot").className = `dot ${this.ready ? "ready" : state}`;
    this.update();
    clearTimeout(this.asking);
    this.asking = setTimeout(() => this.watch(), this.ready ? LOOK_MS : ASK_MS);
  }

  async meet() {
    try {
      const model = await api.model(this.settings.key);
      this.name = model.id;
      find("model-name").textContent = model.id;
      find("model").title = `${model.id}: ${model.exactspec.identity}, context of ${model.max_model_len} tokens`;
      this.settings.offer(model.exactspec.drafts);
      this.say(null);
    } catch (error) {
      const key = error.status === 401;
      find("model-name").textContent = key ? "key needed" : "unknown model";
      this.say(key ? "The server asks for an API key: enter it in the settings." : error.message, true);
    }
  }

  say(words, bad = false) {
    const banner = find("banner");
    banner.hidden = words === null;
    banner.classList.toggle("bad", bad);
    if (banner.textContent !== (words ?? "")) banner.textContent = words ?? "";
  }

  tell(words) {
    find("status").textContent = words;
  }

  // -- turns -----------------------------------------------------------------------------------------------------

  get running() {
    return this.turns.find((turn) => turn.busy) ?? null;
  }

  /** What the server is sent of the turns before `end`; turns without an answer are left out. */
  messages(end = this.turns.length) {
    const { system } = this.settings;
    const sent = system ? [{ role: "system", content: system, node: null }] : [];
    for (const turn of this.turns.slice(0, end)) {
      if (!turn.reply?.text) continue;
      sent.push({ role: "user", content: turn.text, node: turn.question });
      sent.push({ role: "assistant", content: turn.reply.text, node: turn.reply.node });
    }
    return sent;
  }

  send() {
    const text = this.text.value;
    if (!text.trim() || this.running || !this.ready) return;
    this.text.value = "";
    const Kind = this.settings.values.mode === "compare" ? Comparison : Turn;
    const turn = new Kind(text, this.messages(), this.forTurns());
    this.turns.push(turn);
    find("empty").hidden = true;
    this.log.append(turn.node);
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.launch(turn);
  }

  /** Run a turn again, in its place; what came after it goes. */
  again(turn) {
    if (this.running) return;
    const at = this.turns.indexOf(turn);
    for (const later of this.turns.splice(at + 1)) later.node.remove();
    this.launch(turn);
    this.text.focus();
  }

  async launch(turn) {
    const running = turn.run();
    this.tell("Answering.");
    this.update();
    await running;
    this.update();
    if (!turn.reply?.text) this.watch(); // it may have failed because the server went away
  }

  stop() {
    this.running?.stop();
  }

  clear() {
    this.stop();
    this.spotlight.hide();
    this.turns = [];
    this.log.replaceChildren();
    find("empty").hidden = false;
    this.showMeter(null);
    find("live").classList.remove("on");
    this.text.focus();
  }

  answerOf(run) {
    for (const turn of this.turns) {
      for (const { answer } of turn.answers) if (answer.runs.has(run)) return answer;
    }
    return null;
  }

  forTurns() {
    return {
      settings: this.settings,
      again: (turn) => this.again(turn),
      tell: (words) => this.tell(words),
      follow: (change) => this.follow(change),
      live: (meter, clock) => this.live(meter, clock),
    };
  }

  /** Make a change to the conversation; if its end was in view, it stays so. */
  follow(change) {
    const { scroll } = this;
    this.pinned ??= scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
    change();
    if (this.scrolling) return;
    this.scrolling = requestAnimationFrame(() => {
      if (this.pinned) scroll.scrollTop = scroll.scrollHeight;
      this.scrolling = this.pinned = null;
    });
  }

  // -- figures ---------------------------------------------------------------------------------------------------

  /** Show this meter from now on; null: stay with the last figures. */
  live(meter, clock = null) {
    clearInterval(this.ticking);
    if (this.meter) this.showMeter(this.meter);
    if (!meter) return;
    this.meter = meter;
    this.clock = clock;
    find("live").classList.add("on");
    this.showMeter(meter);
    if (meter.ended === null) this.ticking = setInterval(() => this.showMeter(meter), SHOW_MS);
  }

  showMeter(meter) {
    find("live-speed").textContent = shown.speed(meter?.speed ?? null);
    find("live-tau").textContent = shown.tau(meter?.tau ?? null);
    find("live-copied").textContent = shown.share(meter?.copied ?? null);
    find("live-tokens").textContent = meter ? String(meter.tokens) : "–";
    if (meter && this.clock) this.clock.textContent = shown.seconds(meter.seconds);
  }

  update() {
    const busy = this.running !== null;
    find("send").hidden = busy;
    find("stop").hidden = !busy;
    find("send").disabled = !this.ready || !this.text.value.trim();
    document.body.classList.toggle("busy", busy);
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight + 2, 0.35 * window.innerHeight)}px`;
  }
}

const STATES = {
  starting: "The model is being loaded. You can write meanwhile.",
  stopping: "The server is shutting down.",
  broken: "The server has failed and must be started again; its log says more.",
  gone: "The server cannot be reached. Trying again…",
};

new Page();
