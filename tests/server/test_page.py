"""The web page in a real browser: Chromium, headless, driven by Playwright, against a server over a scripted model.

Needs the package `playwright` and a Chromium: one in the path (Debian: `apt-get install chromium`), the one that
EXACTSPEC_CHROMIUM names, or Playwright's own.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scripted import EOS, OPEN, ByteTokenizer, ListTarget
from served import Running, Serve

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.server.page import POLICY

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
expect = playwright.expect

CODE = "rows = [read(line) for line in lines if line]  # ü, 🧭\nreturn rows\n"
HOSTILE = "<script>window.bad=1</script><img src=x onerror='window.bad=1'>&amp;"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 30_000
LIT = """[...CSS.highlights.get('source')].map(
    range => [range.toString(), range.startContainer.parentElement.closest('.question') !== null])"""
"""Each highlighted text, and whether it is in a question."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of this module alone: while it is open, Playwright's event loop is this thread's."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = os.environ.get("EXACTSPEC_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        except playwright.Error as error:
            pytest.skip(
                f"no Chromium could be started ({str(error).splitlines()[0]}); on Debian: apt-get install chromium"
            )
        yield opened
        opened.close()


class Model:
    """Says the last user message again, and ends. `gate`: when cleared, every forward waits for it."""

    def __init__(self, *, max_length: int = 4096) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.slow_from: int | None = None
        self.target = ListTarget(self._logits, vocab_size=300, max_length=max_length, before=self._before)
        self.engine = Engine(self.target, ByteTokenizer(), draft="copy")

    def _before(self, forward: int) -> None:
        if self.slow_from is not None and forward >= self.slow_from:
            self.gate.wait(60)

    @staticmethod
    def _logits(path: list[int]) -> Any:
        row = np.zeros(300, dtype=np.float32)
        begin = len(path) - path[::-1].index(OPEN) + len("assistant\n") if OPEN in path else 0
        user = bytes(t for t in path[:begin] if t < 256).rpartition(b"user\n")[2].removesuffix(b"\nassistant\n")
        said = len(path) - begin
        row[[*user, EOS][min(max(said, 0), len(user))]] = 10.0
        return row


@pytest.fixture(scope="module")
def compiled() -> None:
    """No wait of the browser's is for a compiler."""
    Model().engine.generate("a" * 20, SamplingParams(max_tokens=4))


@pytest.fixture
def model(compiled: None) -> Iterator[Model]:
    one = Model()
    yield one
    one.gate.set()


@pytest.fixture
def page(browser: Any, serve: Serve, model: Model) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    opened = open_page(context, serve(model.engine))
    yield opened
    context.close()


def open_page(context: Any, running: Running) -> Any:
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.faults = []  # what the page must never do
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda line: page.faults.append(line.text) if "Content Security Policy" in line.text else None)
    page.goto(running.url)
    return page


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def done(page: Any, turns: int = 1) -> None:
    expect(page.locator(".figures")).to_have_count(turns, timeout=WAIT_MS)
    assert page.faults == []


def test_an_answer_streams_and_its_copies_show_their_source(page: Any) -> None:
    expect(page.locator("#model-name")).to_have_text("tiny")
    ask(page, CODE)
    done(page)
    assert page.locator(".answer").evaluate("node => node.textContent") == CODE  # characters of several tokens, too
    assert page.locator(".run.copy").count() > 0
    assert page.locator(".run.plain").count() > 0
    assert (
        page.locator(".run.copy > span").count() + page.locator(".run.plain > span").count() == len(CODE.encode()) + 1
    )
    run = page.locator(".run.copy").nth(1)
    run.hover()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tip")).to_contain_text("Copied from the conversation")
    lit = page.evaluate(LIT)
    assert [inside for _, inside in lit] == [True]
    copied = run.evaluate("node => node.textContent")
    assert len(copied) > 1
    assert copied in lit[0][0]
    assert lit[0][0] == page.locator("#tip mark").evaluate("node => node.textContent")
    page.mouse.move(5, 5)
    expect(page.locator("#tip")).to_be_hidden()
    assert page.evaluate("CSS.highlights.has('source')") is False
    figures = page.locator(".figures").text_content()
    assert re.fullmatch(rf"[\d.]+ tokens/s · tau \d+\.\d\d · {len(CODE.encode()) + 1} tokens in [\d.]+ s", figures)
    assert float(re.search(r"tau (\S+)", figures)[1]) > 1
    assert page.locator("#live-copied").text_content().endswith("%")


def test_the_keyboard_reaches_everything(page: Any) -> None:
    ask(page, CODE)
    done(page)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Shift+Tab")  # into the answer: one stop for all runs
    expect(page.locator(".run.copy").first).to_be_focused()
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".run.copy").nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".run.copy").last).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    assert page.get_by_label("Message", exact=True).input_value() == "a\nb"
    page.keyboard.press("Enter")
    done(page, 2)
    assert page.locator(".answer").last.evaluate("node => node.textContent") == "a\nb"


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop(page: Any, model: Model, way: str) -> None:
    expect(page.locator("#model-name")).to_have_text("tiny")
    model.gate.clear()
    model.slow_from = model.target.forwards + 4
    ask(page, "x" * 30 + CODE)
    expect(page.locator(".run").first).to_be_attached()
    expect(page.locator("#send")).to_be_hidden()
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.locator(".note")).to_have_text("Stopped.")
    assert page.locator(".answer").evaluate("node => node.textContent").startswith("x")  # what there was stays
    model.gate.set()
    model.slow_from = None
    ask(page, "again")  # the place is free
    done(page)
    assert page.locator(".answer").last.evaluate("node => node.textContent") == "again"


def test_side_by_side_is_equal(page: Any) -> None:
    page.get_by_text("Side by side", exact=True).click()
    ask(page, CODE)
    done(page, 2)
    expect(page.locator(".verdict.equal strong")).to_have_text(f"Equal, token for token ({len(CODE.encode()) + 1})")
    plain, drafted = page.locator(".pane").all()
    assert plain.locator(".run.copy").count() == 0
    assert drafted.locator(".run.copy").count() > 0
    assert plain.locator(".answer").text_content() == drafted.locator(".answer").text_content()
    for pane in (plain, drafted):
        assert re.fullmatch(r"[\d.]+ s", pane.locator(".clock").text_content())
    assert re.search(r"[\d.]+ s plain, [\d.]+ s drafted: [\d.]+× ", page.locator(".verdict").text_content())


def test_side_by_side_shows_a_difference(page: Any) -> None:
    """Replies that differ are told apart: the second stream is changed on its way."""
    page.get_by_text("Side by side", exact=True).click()

    def change(route: Any) -> None:
        if "none" in route.request.post_data:
            return route.continue_()
        reply = route.fetch()
        return route.fulfill(response=reply, body=reply.text().replace('"id":112,', '"id":113,', 1))

    page.route("**/v1/chat/completions", change)
    ask(page, "up")
    done(page, 2)
    expect(page.locator(".verdict.different strong")).to_have_text("Different from token 2 on")
    assert page.locator(".differs").count() == 2


def test_markup_stays_text(page: Any) -> None:
    ask(page, HOSTILE)
    done(page)
    assert page.locator(".answer").evaluate("node => node.textContent") == HOSTILE
    assert page.locator(".question").evaluate("node => node.textContent") == HOSTILE
    assert page.evaluate("window.bad") is None
    assert page.locator("#log script, #log img").count() == 0


def test_the_history_is_sent(page: Any) -> None:
    ask(page, "first")
    done(page)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "second")
    assert sent.value.post_data_json["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "second"},
    ]
    done(page, 2)
    page.get_by_role("button", name="New").click()
    expect(page.locator("#empty")).to_be_visible()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "third")
    assert len(sent.value.post_data_json["messages"]) == 1


def test_a_refusal_is_shown_and_can_be_tried_again(browser: Any, serve: Serve) -> None:
    context = browser.new_context()
    page = open_page(context, serve(Model(max_length=200).engine))
    ask(page, "long " * 60)
    expect(page.get_by_role("alert")).to_contain_text("maximum context length is 200 tokens")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.unroute("**/v1/chat/completions")
    ask(page, "short")  # turns that failed are not sent
    done(page)
    context.close()


def test_a_full_queue_is_waited_for(page: Any) -> None:
    tries = []

    def refuse(route: Any) -> None:
        tries.append(route)
        if len(tries) > 1:
            return route.continue_()
        error = {"message": "Too many requests are waiting; try again in 1 s", "code": "queue_full"}
        return route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": error})

    page.route("**/v1/chat/completions", refuse)
    ask(page, "hello")
    expect(page.locator(".note")).to_contain_text("trying again in 1 s")
    done(page)
    assert len(tries) == 2
    assert page.locator(".answer").text_content() == "hello"


def test_the_servers_state_is_shown(browser: Any, serve: Serve, model: Model) -> None:
    running = serve(model.engine)
    running.service._state = "starting"
    context = browser.new_context()
    page = open_page(context, running)
    expect(page.locator("#banner")).to_contain_text("being loaded")
    page.get_by_label("Message", exact=True).fill("hello")
    expect(page.locator("#send")).to_be_disabled()
    running.service._state = "ready"
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#banner")).to_be_hidden()
    page.keyboard.press("Enter")
    done(page)
    page.route("**/health", lambda route: route.abort())
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "gone")
    expect(page.locator("#banner")).to_contain_text("cannot be reached")
    context.close()


def test_a_key_is_asked_for(browser: Any, serve: Serve, model: Model) -> None:
    context = browser.new_context()
    page = open_page(context, serve(model.engine, api_keys=("secret",)))
    expect(page.locator("#banner")).to_contain_text("API key")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#model-name")).to_have_text("tiny")
    ask(page, "hello")
    done(page)
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    context.close()


def test_light_dark_and_phone(browser: Any, serve: Serve, model: Model) -> None:
    running = serve(model.engine)
    context = browser.new_context(color_scheme="dark", viewport={"width": 375, "height": 667}, has_touch=True)
    page = open_page(context, running)
    ask(page, "a_long_name_that_does_not_end_" * 20 + CODE)
    done(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(background) != dark
    page.reload()
    assert page.evaluate(background) != dark  # the choice is kept
    context.close()


@pytest.mark.parametrize("width", [320, 375, 1000])
def test_a_long_name_can_be_read(browser: Any, serve: Serve, model: Model, width: int) -> None:
    name = "an-organisation/a-model-with-a-long-name-0.5b-instruct-q4_k_m.gguf"
    context = browser.new_context(viewport={"width": width, "height": 667})
    page = open_page(context, serve(model.engine, name=name))
    expect(page.locator("#model-name")).to_have_text(name)
    assert name in page.locator("#model").get_attribute("title")
    shown = page.locator("#model-name").evaluate(
        "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
    )
    assert shown
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_what_the_page_is_served_with(serve: Serve, model: Model) -> None:
    """Needs no browser: only the page's own files, each with the policy; no other path is taken from the API."""
    running = serve(model.engine, api_keys=("secret",))
    status, html = running.get("/")
    assert status == 200
    linked = re.findall(r'(?:href|src)="(/[^"]+)"', html)
    assert len(linked) >= 4
    assert not re.search(r"\bon\w+=|<style|style=|javascript:|https?://", html)
    seen = set()
    while linked:
        path = linked.pop()
        if path in seen:
            continue
        seen.add(path)
        status, text = running.get(path)
        assert status == 200, path
        linked += [f"/page/{name}" for name in re.findall(r'from "\./([\w.]+)"', text)]
    assert {"/page/app.js", "/page/spotlight.js", "/page/answer.css"} <= seen
    response = head(running, "/page/app.js")
    assert response.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert head(running, "/page/app.js", etag=response.headers["etag"]).status == 304
    assert running.get("/page/../app.py")[0] == 404
    assert running.get("/nothing")[0] == 404
    assert running.post("/v1/nothing", {}, Authorization="Bearer secret")[0] == 404


def head(running: Running, path: str, etag: str = "") -> Any:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.request("HEAD", path, headers={"If-None-Match": etag} if etag else {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response
