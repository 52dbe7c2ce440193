"""The page in a real browser, as wide as a phone: it renders a hostile answer, stops, remembers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import threading
import time

import httpx2
import pytest
from playwright.sync_api import expect, sync_playwright

from armllm.sampling_params import StructuredOutputsParams
from armllm.smoke.passages import MODEL, load_passages

PASSAGE = load_passages()[0]
PHONE = {"viewport": {"width": 375, "height": 667}, "is_mobile": True, "has_touch": True}
SECONDS = 120.0  # waits end with what they wait for; only a failure takes so long
pytestmark = pytest.mark.slow
expect.set_options(timeout=1000 * SECONDS)


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "no browser: install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Phone:
    """A page of a server, with what it logs and fetches."""

    def __init__(self, browser, url):
        self.context = browser.new_context(**PHONE)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * SECONDS)
        self.logged, self.fetched = [], []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(url)

    def __getitem__(self, name):
        return self.page.locator(f"#{name}")

    def shows(self, name, text):
        expect(self[name]).to_have_text(text)

    def complete(self, prompt):
        """Ask for the rest of a text, greedily."""
        if not self["mode"].is_visible():
            self.page.get_by_text("Settings").click()
        self["mode"].select_option("complete")
        self["temperature"].fill("0")
        self["message"].fill(prompt)
        self["send"].click()

    def chat(self, message):
        """Say something, and wait for the end of the answer."""
        before = self.page.locator(".note").count()
        self["message"].fill(message)
        self["message"].press("Enter")
        expect(self.page.locator(".note")).to_have_count(before + 1)

    @property
    def answer(self):
        return self.page.locator(".message.assistant").last


@pytest.fixture
def phone(browser):
    """phone(url): a page, closed at the end."""
    opened = []

    def look(url):
        opened.append(Phone(browser, url))
        return opened[-1]

    yield look
    for one in opened:
        one.context.close()


def test_a_phone_is_recited_to(served, phone):
    look = phone(served.url)
    look.shows("model", "smoke")
    look.complete(PASSAGE.prompt)
    expect(look.answer.locator(".note")).to_contain_text(f"{len(PASSAGE.token_ids)} tokens, first after")
    assert look.answer.locator(".text").inner_text() == PASSAGE.text.strip()
    assert look.page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    look.shows("running", "0")
    look.shows("cache-text", re.compile(r"^\d+\.\d %$"))
    assert look.logged == []
    assert all(url.startswith(f"{served.url}/") or url == "data:," for url in look.fetched)


def test_the_page_counts_and_stops(serving, phone, monkeypatch):
    with serving({"max_num_seqs": 1}) as busy:
        look = phone(busy.url)
        step = busy.engine.llm_engine.step

        def slow_step():
            """Steps so slow that the page, which asks once a second, sees the request."""
            time.sleep(0.02)
            return step()

        monkeypatch.setattr(busy.engine.llm_engine, "step", slow_step)
        others = {"model": "smoke", "prompt": PASSAGE.prompt, "n": 16, "max_tokens": 200, "ignore_eos": True}
        leave = threading.Event()

        def occupy():
            with httpx2.stream(
                "POST", f"{busy.url}/v1/completions", json=others | {"stream": True}, timeout=SECONDS
            ) as answer:
                for _ in answer.iter_lines():
                    if leave.is_set():
                        return

        other = threading.Thread(target=occupy)
        other.start()
        try:
            look.shows("running", "1")
            look.complete("Hello")
            expect(look["waiting"]).not_to_have_text("0")
            expect(look["speed"]).to_have_text(re.compile(r"^[1-9]"))
            look["stop"].click()
            expect(look["send"]).to_be_visible()
        finally:
            leave.set()
            other.join(SECONDS)
        look.shows("waiting", "0")
        busy.assert_idle()


def test_a_page_without_the_key_says_so(serving, phone):
    with serving(api_keys=("secret",)) as locked:
        look = phone(locked.url)
        expect(look["key"]).to_be_focused()
        look.complete(PASSAGE.prompt)
        expect(look.answer).to_have_class(re.compile("error"))
        assert "API key" in look.answer.inner_text()
        look["key"].fill("secret")
        look["key"].press("Tab")
        look.shows("model", "smoke")
        look.complete(PASSAGE.prompt)
        expect(look.answer.locator(".text")).to_have_text(PASSAGE.text)


MARKDOWN = """## A *heading*

1. first
2. **second**

| core | bits |
| --- | ---: |
| N1 | 128 |

```python
print("<b>not bold</b>")
```

A [link](https://example.org/a?b=1&c=2) and `code`.
"""
HOSTILE = """Look:

<script>window.hit = 1</script>
<img src=x onerror="window.hit = 2">
<svg onload="window.hit = 3"><style>body { display: none }</style></svg>
<iframe srcdoc="<script>parent.hit = 4</script>"></iframe>

[a](javascript:window.hit=5) [b](JaVaScRiPt&colon;window.hit=6) [c](data:text/html,<script>parent.hit=7)
<a href="javascript:window.hit=8">d</a> ![e](http://127.0.0.1:9/leak.png) [f](//127.0.0.1:9/g)
[g](vbscript:x "onclick=window.hit=9") <form action=//127.0.0.1:9><input name=message></form>
<b id=send onclick="window.hit=10">bold</b> <math><mtext><table><mglyph><style><img src=x onerror=hit=11>

```html" onmouseover="window.hit=12
<script>window.hit = 13</script>
```
"""


@contextlib.contextmanager
def answering(served, text):
    """The model can write nothing else."""
    defaults = served.service.default_sampling
    served.service.default_sampling = dataclasses.replace(
        defaults, structured_outputs=StructuredOutputsParams(choice=[text])
    )
    try:
        yield
    finally:
        served.service.default_sampling = defaults


def test_markdown_and_code_are_rendered_and_copied(served, phone):
    look = phone(served.url)
    look.context.grant_permissions(["clipboard-read", "clipboard-write"])
    clipboard = "navigator.clipboard.readText()"
    with answering(served, MARKDOWN):
        look.chat("Write Markdown")
    text = look.answer.locator(".text")
    assert text.locator("h2 em").inner_text() == "heading"
    assert text.locator("ol li strong").inner_text() == "second"
    assert text.locator("td[align=right]").inner_text() == "128"
    assert text.locator(".language").inner_text() == "python"
    assert text.locator("pre").inner_text().strip() == 'print("<b>not bold</b>")'
    link = text.get_by_role("link", name="link")
    assert link.get_attribute("href") == "https://example.org/a?b=1&c=2"
    assert "noopener" in link.get_attribute("rel")
    text.get_by_role("button", name="Copy").click()
    expect(text.get_by_role("button", name="Copied")).to_be_visible()
    assert look.page.evaluate(clipboard).strip() == 'print("<b>not bold</b>")'
    look.answer.locator(".note").get_by_role("button", name="Copy").click()
    expect(look.answer.locator(".note").get_by_role("button", name="Copied")).to_be_visible()
    assert look.page.evaluate(clipboard) == MARKDOWN
    look.page.get_by_text("Settings").click()
    look["markdown"].uncheck()
    assert text.text_content() == MARKDOWN
    assert look.page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    assert look.logged == []


def test_what_a_hostile_model_writes_is_text(served, phone):
    """It would catch HTML that is passed on, an unsafe link, a style, and a picture that tells who reads."""
    look = phone(served.url)
    with answering(served, HOSTILE):
        look.chat("Attack")
    text = look.answer.locator(".text")
    assert text.locator("script, img, svg, style, iframe, form, input, math, [id], [style]").count() == 0
    attributes = text.evaluate(
        "node => [...node.querySelectorAll('*')].flatMap(one => one.getAttributeNames())"
    )
    assert not [name for name in attributes if name.startswith("on")]
    links = text.locator("a[href]").evaluate_all("nodes => nodes.map(node => node.href)")
    assert links == ["http://127.0.0.1:9/leak.png"]
    assert "<script>window.hit = 1</script>" in text.inner_text()
    for shown in text.locator("a:not([href])").all():
        shown.click()
    text.locator("pre").last.hover()
    look.page.reload()
    look["open-history"].click()
    look.page.locator("#conversations .open").click()
    expect(look.answer.locator(".text")).to_contain_text("window.hit = 13")
    assert look.page.evaluate("window.hit") is None
    assert look.logged == []
    assert all(url.startswith(f"{served.url}/") or url == "data:," for url in look.fetched)


def test_a_long_answer_is_drawn_while_it_comes_and_whole_at_its_end(served, phone):
    """It would catch a page that draws every piece anew, and one that leaves out what came last."""
    look = phone(served.url)
    row = "| 1 | **2** |\n"
    pieces = ["| a | b |\n| - | - |\n", *[row] * 3000, "\nThe end"]
    events = [{"choices": [{"delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    look.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )
    look.chat("Write")
    text = look.answer.locator(".text")
    assert text.locator("tbody tr").count() == 3000
    assert text.locator("p").last.inner_text() == "The end"
    assert look.page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    assert look.logged == []


def test_the_policy_holds_if_the_sanitizer_fails(served, phone):
    look = phone(served.url)
    look.page.evaluate(
        "() => { const link = document.createElement('a'); link.href = 'javascript:window.hit = 1';"
        " document.body.append(link); link.click(); }"
    )
    with pytest.raises(Exception, match="TrustedHTML"):
        look.page.evaluate("document.body.innerHTML = '<b>x</b>'")
    expect(look["model"]).to_have_text("smoke")
    assert look.page.evaluate("window.hit") is None
    assert any("Content Security Policy" in line for line in look.logged)


def test_an_answer_is_given_again_and_conversations_stay_in_the_browser(served, phone):
    look = phone(served.url)
    look.page.get_by_text("Settings").click()
    look["top_k"].fill("1")
    look["max_tokens"].fill("3")
    look.page.get_by_text("Settings").click()
    bodies = []
    look.page.on(
        "request", lambda request: bodies.append(request.post_data_json) if "/chat/" in request.url else None
    )
    with answering(served, "one two three four five six"):
        look.chat("First")
        assert "cut at the token limit" in look.answer.locator(".note").inner_text()
        with look.page.expect_response("**/v1/chat/completions"):
            look.answer.get_by_role("button", name="Regenerate").click()
        expect(look.page.locator(".note")).to_have_count(1)
        look.chat("Second")
    assert (bodies[0]["top_k"], bodies[0]["max_tokens"]) == (1, 3)
    assert bodies[0] == bodies[1]
    assert [message["role"] for message in bodies[2]["messages"]] == ["user", "assistant", "user"]
    assert set(bodies[2]["messages"][1]) == {"role", "content"}
    look["new"].click()
    assert look.page.locator(".message").count() == 0
    look.page.reload()
    assert look["top_k"].input_value() == "1"
    look["open-history"].click()
    look.page.locator("#conversations .open", has_text="First").click()
    assert look.page.locator(".message").count() == 4
    look["open-history"].click()
    look["conversations"].get_by_role("button", name="Delete").click()
    expect(look["no-history"]).to_be_visible()


def test_a_model_without_a_template_completes_by_itself(serving, phone):
    with serving(folder=MODEL) as plain:
        look = phone(plain.url)
        expect(look["hint"]).to_be_visible()
        look.page.get_by_text("Settings").click()
        look["temperature"].fill("0")
        look.chat(PASSAGE.prompt)
        assert look.answer.locator(".text").inner_text() == PASSAGE.text.strip()
