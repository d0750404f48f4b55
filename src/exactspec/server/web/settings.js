/** What the user chose, kept in the browser; the API key only as long as the tab lives. */

import { find, make } from "./dom.js";

const STORED = "exactspec.settings";
const KEY = "exactspec.key";
const DEFAULTS = { draft: "", nodes: "", tokens: "800", temperature: "0", seed: "", system: "", theme: "", mode: "chat" };
const FIELDS = ["draft", "nodes", "tokens", "temperature", "seed", "system"];

export class Settings {
  /** `changed`: called after the dialog has been closed. */
  constructor(changed) {
    this.values = { ...DEFAULTS, ...load(localStorage, STORED) };
    this.key = load(sessionStorage, KEY)?.key ?? "";
    this.dialog = find("settings");
    find("open-settings").addEventListener("click", () => this.open());
    this.dialog.addEventListener("close", () => {
      this.take();
      changed();
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // on the backdrop
    });
    find("theme").addEventListener("click", () => this.switchTheme());
    this.showTheme();
  }

  /** The ways to draft that the server knows; the first is its own choice. */
  offer(drafts) {
    const others = drafts.filter((draft) => draft !== "none");
    const nodes = others.map((draft) => make("option", { value: draft }, draft));
    find("set-draft").replaceChildren(make("option", { value: "" }, `the server's (${drafts[0]})`), ...nodes);
    if (!others.includes(this.values.draft)) this.values.draft = "";
  }

  open() {
    for (const field of FIELDS) find(`set-${field}`).value = this.values[field];
    find("set-key").value = this.key;
    this.dialog.showModal();
  }

  take() {
    for (const field of FIELDS) {
      const input = find(`set-${field}`);
      if (input.validity.valid) this.values[field] = input.value;
    }
    this.key = find("set-key").value.trim();
    this.save();
  }

  set(field, value) {
    this.values[field] = value;
    this.save();
  }

  save() {
    store(localStorage, STORED, this.values);
    store(sessionStorage, KEY, { key: this.key });
  }

  /** The fields of a request; `draft`: instead of the chosen one. */
  request(messages, { draft, tokens } = {}) {
    const { values } = this;
    const speculative = { trace: true };
    const chosen = draft ?? values.draft;
    if (chosen) speculative.draft = chosen;
    if (values.nodes) speculative.max_nodes = Number(values.nodes);
    const body = { messages, temperature: Number(values.temperature), speculative };
    body.max_tokens = tokens ?? Number(values.tokens);
    if (values.seed !== "") body.seed = Number(values.seed);
    return body;
  }

  get system() {
    return this.values.system.trim();
  }

  switchTheme() {
    const dark = this.values.theme ? this.values.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.set("theme", dark ? "light" : "dark");
    this.showTheme();
  }

  showTheme() {
    if (this.values.theme) document.documentElement.dataset.theme = this.values.theme;
  }
}

function load(storage, name) {
  try {
    return JSON.parse(storage.getItem(name)) ?? {};
  } catch {
    return {};
  }
}

function store(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch {
    // storage is full or forbidden: the choice lasts as long as the page
  }
}
