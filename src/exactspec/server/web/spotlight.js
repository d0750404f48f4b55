/**
 * Shows where a drafted run came from, on pointing, touching or focusing it: a tip beside it, and the source itself lit up
 * in the conversation. Enter or a click scrolls to the source; Left, Right, Home and End go from run to run.
 */

import { make } from "./dom.js";
import { SOURCES } from "./meter.js";

const HIGHLIGHT = "source"; // ::highlight(source) in the style sheet

export class Spotlight {
  /** `log`: holds the answers; `tip`: the node for the tip; `answerOf` run's node -> its `Answer`, or null. */
  constructor({ log, tip, scroller, answerOf }) {
    this.tip = tip;
    this.answerOf = answerOf;
    this.current = null;
    log.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") this.point(runAt(event.target));
    });
    log.addEventListener("pointerleave", () => this.point(null));
    log.addEventListener("focusin", (event) => this.show(runAt(event.target)));
    log.addEventListener("focusout", () => this.hide());
    log.addEventListener("click", (event) => this.click(runAt(event.target)));
    log.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("scroll", () => this.place(), { passive: true });
    window.addEventListener("resize", () => this.place(), { passive: true });
  }

  get open() {
    return this.current !== null;
  }

  /** The pointer is on `run`, or on none: then the focused one, if any, is shown again. */
  point(run) {
    if (run && this.answerOf(run)) this.show(run);
    else if (this.current && this.current !== document.activeElement) this.hide();
  }

  show(run) {
    const answer = run && this.answerOf(run);
    if (!answer) return;
    if (run === this.current) return;
    this.hide();
    const info = answer.runs.get(run);
    this.current = run;
    this.tip.className = info.kind;
    this.tip.replaceChildren(...this.words(answer, info));
    this.tip.hidden = false;
    run.setAttribute("aria-describedby", this.tip.id);
    run.classList.add("lit");
    this.place();
  }

  words(answer, { kind, source, span }) {
    const name = SOURCES[kind];
    if (!span || source === "prediction") {
      const more = kind === "copy" ? { prediction: "from the predicted text", store: "from an earlier answer" }[source] : "";
      this.light([]);
      return [make("strong", {}, more ? `${capital(name)} ${more}` : `${capital(name)}: ${EXPLAINED[kind]}`)];
    }
    const found = answer.history.locate(span);
    this.light(found.ranges);
    this.ranges = found.ranges;
    const tokens = span[1] - span[0];
    return [
      make("strong", {}, `${capital(name)} from ${found.where}`),
      make("span", { class: "where" }, ` ${tokens} ${tokens === 1 ? "token" : "tokens"}, from ${span[0]} on`),
      make("q", {}, found.before, make("mark", {}, found.text), found.after),
    ];
  }

  light(ranges) {
    this.ranges = ranges;
    if (!("highlights" in CSS)) return; // older browsers show the tip alone
    if (ranges.length) CSS.highlights.set(HIGHLIGHT, new Highlight(...ranges));
    else CSS.highlights.delete(HIGHLIGHT);
  }

  hide() {
    if (!this.current) return;
    this.current.removeAttribute("aria-describedby");
    this.current.classList.remove("lit");
    this.current = null;
    this.tip.hidden = true;
    this.light([]);
  }

  /** Puts the tip below the run, or above it where there is no room. */
  place() {
    if (!this.current) return;
    const boxes = this.current.getClientRects();
    const box = boxes[boxes.length - 1];
    if (!box) return;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const left = Math.min(Math.max(8, box.left), window.innerWidth - width - 8);
    const below = box.bottom + 6;
    const top = below + height > window.innerHeight - 8 ? boxes[0].top - height - 6 : below;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${Math.max(8, top)}px`;
  }

  click(run) {
    if (!run || !this.answerOf(run)) return this.hide();
    if (window.getSelection()?.isCollapsed === false) return undefined; // text is being selected
    run.focus({ preventScroll: true });
    this.show(run);
    return this.reveal();
  }

  /** Scrolls to the source unless it can be seen. */
  reveal() {
    const node = this.ranges?.[0]?.startContainer.parentElement;
    node?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  key(event) {
    const run = runAt(event.target);
    const answer = run && this.answerOf(run);
    if (!answer || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = answer.runs;
    const next = {
      ArrowRight: () => answer.beside(run, 1),
      ArrowLeft: () => answer.beside(run, -1),
      Home: () => all.keys().next().value,
      End: () => [...all.keys()].at(-1),
    }[event.key];
    if (next) {
      event.preventDefault();
      const to = next();
      if (!to) return;
      run.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.reveal();
    }
  }
}

const EXPLAINED = {
  recycle: "what the model had in mind here before",
  longspec: "by the draft layer trained for this model",
  model: "by a smaller model",
  other: "by another drafter",
  copy: "from text that is not shown here",
};

function runAt(target) {
  return target instanceof Element ? target.closest(".run") : null;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
