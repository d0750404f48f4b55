/**
 * One question answered twice, plain and drafted, one after the other so that neither slows the other down.
 *
 * A first request of one token makes the server read the prompt: both answers then begin from kept work, and their clocks
 * compare. Both have the same seed.
 */

import * as api from "./api.js";
import { make } from "./dom.js";
import { shown } from "./meter.js";
import { Turn } from "./turn.js";

export class Comparison extends Turn {
  async answer() {
    const { settings } = this.page;
    const plain = this.pane("Plain");
    const drafted = this.pane(`Drafted${settings.values.draft ? `: ${settings.values.draft}` : ""}`);
    const verdict = make("p", { class: "verdict", role: "status" }, "Reading the prompt…");
    this.body.append(verdict, make("div", { class: "panes" }, plain.node, drafted.node));
    drafted.node.classList.add("waiting");
    plain.node.classList.add("waiting");
    this.reply = drafted.answer;

    const seed = settings.values.seed === "" ? { seed: Math.floor(Math.random() * 2 ** 32) } : {};
    const options = { key: settings.key, signal: this.abort.signal };
    const reading = { ...settings.request(this.plain, { draft: "none", tokens: 1 }), ...seed };
    for await (const event of api.chat(reading, options)) void event;

    verdict.textContent = "Answering plain…";
    plain.node.classList.remove("waiting");
    await this.follow({ ...settings.request(this.plain, { draft: "none" }), ...seed }, plain);

    verdict.textContent = "Answering drafted…";
    drafted.node.classList.remove("waiting");
    await this.follow({ ...settings.request(this.plain), ...seed }, drafted);

    this.conclude(plain, drafted, verdict);
  }

  conclude(plain, drafted, verdict) {
    const [a, b] = [plain.answer.ids, drafted.answer.ids];
    const least = Math.min(a.length, b.length);
    let same = 0;
    while (same < least && a[same] === b[same]) same += 1;
    const equal = same === a.length && same === b.length;
    const ratio = plain.meter.seconds / drafted.meter.seconds;
    const pace = ratio >= 1 ? `${ratio.toFixed(2)}× as fast` : `${(1 / ratio).toFixed(2)}× slower`;
    const words = equal ? `Equal, token for token (${a.length})` : `Different from token ${same + 1} on`;
    const clocks = `${shown.seconds(plain.meter.seconds)} plain, ${shown.seconds(drafted.meter.seconds)} drafted: ${pace}`;
    verdict.classList.add(equal ? "equal" : "different");
    verdict.replaceChildren(make("strong", {}, words), make("span", {}, clocks));
    if (!equal) {
      plain.answer.mark(same);
      drafted.answer.mark(same);
    }
    this.page.tell(`${words}. ${clocks}.`);
  }
}
