"""The page in a real browser, as wide as a phone: it recites, stops, and says what is wrong."""

from __future__ import annotations

import re
import shutil
import threading

import httpx2
import pytest
from playwright.sync_api import expect, sync_playwright

from armllm.smoke.passages import load_passages

PASSAGE = load_passages()[0]
PHONE = {"viewport": {"width": 375, "height": 667}, "is_mobile": True, "has_touch": True}
SECONDS = 30.0
pytestmark = pytest.mark.slow


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
        expect(self[name]).to_have_text(text, timeout=1000 * SECONDS)

    def complete(self, prompt):
        """Ask for the rest of a text, greedily."""
        if not self["mode"].is_visible():
            self.page.get_by_text("Settings").click()
        self["mode"].select_option("complete")
        self["temperature"].fill("0")
        self["message"].fill(prompt)
        self["send"].click()

    @property
    def answer(self):
        return self.page.locator(".said.assistant").last


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
    assert look.answer.locator(".text").inner_text() == PASSAGE.text
    assert look.page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    look.shows("running", "0")
    look.shows("cache-text", re.compile(r"^\d+\.\d %$"))
    assert look.logged == []
    assert all(url.startswith(f"{served.url}/") or url == "data:," for url in look.fetched)


def test_the_page_counts_and_stops(serving, phone):
    with serving({"max_num_seqs": 1}) as busy:
        look = phone(busy.url)
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
            expect(look["waiting"]).not_to_have_text("0", timeout=1000 * SECONDS)
            expect(look["speed"]).to_have_text(re.compile(r"^[1-9]"), timeout=1000 * SECONDS)
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
        expect(look.answer.locator(".text")).to_have_text(PASSAGE.text, timeout=1000 * SECONDS)
