"""Pictures over HTTP: as data URLs, from the hosts that are allowed, and from nowhere else."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
import time

import httpx2
import pytest
from tests.armllm.models.picture_models import PAD, data_url, picture, save, save_tokenizer
from tests.armllm.server.conftest import DEADLINE

from armllm.errors import RequestError
from armllm.server import media
from armllm.server.media import Fetcher, is_public

PICTURE = picture(0, 40, 72)
TOKENS = 5 * 9  # of it
URL = data_url(PICTURE)
FILE = base64.b64decode(URL.partition(",")[2])


def body(*urls, **fields):
    parts = [{"type": "text", "text": "w5 w6 "}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    options = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"messages": [{"role": "user", "content": parts}], **options, **fields}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    save(folder)
    save_tokenizer(folder)
    return folder


def test_a_server_answers_about_pictures(start, seeing):
    """Through the process of the engine, whose prompt has the tokens of the picture."""
    server = start(seeing, "--dtype", "float32", "--limit-mm-per-prompt", '{"image": 1}')
    url = f"{server.wait_ready()}/v1/chat/completions"
    answers = [httpx2.post(url, json=body(URL), timeout=5 * DEADLINE).json() for _ in range(2)]
    assert answers[0]["prompt_token_ids"] == [5, 6, *[PAD] * TOKENS]
    assert answers[0]["usage"]["prompt_tokens"] == 2 + TOKENS
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    with httpx2.stream("POST", url, json=body(URL, stream=True), timeout=DEADLINE) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")
    for given, message in (
        (body(URL, URL), "image_url: a prompt has 2 pictures; limit_mm_per_prompt allows at most 1"),
        (body("https://example.org/cat.png"), "is not a data URL"),
        (body("data:image/png;base64,aaaa"), "none of JPEG, PNG"),
    ):
        answer = httpx2.post(url, json=given, timeout=DEADLINE)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,aaaa"}}
    for part in (video, {"type": "image"}):  # the latter is a place without a picture
        answer = httpx2.post(url, json={"messages": [{"role": "user", "content": [part]}]}, timeout=DEADLINE)
        assert f"'{part['type']}' is not supported" in answer.json()["error"]["message"]


def response_body(*urls, **fields):
    parts = [{"type": "input_text", "text": "w5 w6 "}]
    parts += [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    options = {"max_output_tokens": 4, "temperature": 0}
    return {"input": [{"role": "user", "content": parts}], **options, **fields}


def test_responses_take_pictures_and_too_many_wait(serving, seeing, monkeypatch):
    """The answer is that of a chat, and its usage counts the picture. A full memory is not a bad request."""
    with serving({}, folder=str(seeing)) as server:
        chat = server.post("/v1/chat/completions", body(URL, ignore_eos=False)).json()
        given = server.post("/v1/responses", response_body(URL)).json()
        assert given["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert given["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"] == 2 + TOKENS
        streamed = server.post("/v1/responses", response_body(URL, stream=True)).text
        assert f'"input_tokens":{2 + TOKENS}' in streamed.replace(" ", "")
        for wrong, message in (
            ({"type": "input_image", "file_id": "file-1"}, "image_url is required"),
            ({"type": "input_image", "image_url": "https://example.org/cat.png"}, "is not a data URL"),
            ({"type": "input_file", "file_id": "file-1"}, "its type can only be input_text"),
        ):
            answer = server.post("/v1/responses", {"input": [{"role": "user", "content": [wrong]}]})
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]
        monkeypatch.setattr("armllm.pictures.MOST_WAITING", -1)
        answer = server.post("/v1/chat/completions", body(URL))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "busy"
        server.assert_idle()


def test_a_model_of_text_refuses_pictures(served):
    answer = served.post("/v1/chat/completions", body(URL))
    assert answer.status_code == 400
    assert "takes no pictures" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - refused
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("fec0::1", False),
        ("5f00::1", False),
    ],
)
def test_only_public_addresses_are_asked(address, public):
    assert is_public(address) == public


class Files(http.server.BaseHTTPRequestHandler):
    """A host of pictures that are well, too large, slow or elsewhere."""

    def do_GET(self):
        if self.path.startswith("/to"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2] or self.path)
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        try:
            if self.path == "/large":
                for _ in range(21):
                    self.wfile.write(bytes(1 << 20))
            elif self.path == "/slow":
                for _ in range(100):
                    self.wfile.write(b"a")
                    self.wfile.flush()
                    time.sleep(0.05)
            else:
                self.wfile.write(FILE if self.path == "/seen.png" else b"picture")
        except OSError:
            pass

    def log_message(self, *arguments):
        pass


@pytest.fixture
def host(monkeypatch):
    """Such a host at 127.0.0.1, which counts as public, as good.test and with other names as others."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    port = server.server_address[1]
    resolve = socket.getaddrinfo

    def found(name, *arguments, **options):
        addresses = {
            "good.test": ["127.0.0.1"],
            "private.test": ["10.0.0.1"],
            "both.test": ["127.0.0.1", "::1"],
        }
        return [
            one for address in addresses.get(name, [name]) for one in resolve(address, *arguments, **options)
        ]

    monkeypatch.setattr(media.socket, "getaddrinfo", found)
    monkeypatch.setattr(media, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
    yield f"http://good.test:{port}"
    server.shutdown()
    thread.join()
    server.server_close()


HOSTS = ("Good.test", "private.test", "both.test")


def test_a_picture_is_fetched_from_an_allowed_host(host):
    assert Fetcher(HOSTS).fetch(f"{host}/cat.png?size=1") == b"picture"
    assert Fetcher(HOSTS).fetch(f"{host}/to?/cat.png") == b"picture"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/none", "answers with status 404"),
        ("/large", "more than 20971520 bytes"),
        ("/slow", "takes more than 1 s"),
        ("/to?http://private.test/cat.png", "'private.test' is in a private network"),
        ("/to?http://both.test/cat.png", "'both.test' is in a private network"),
        ("/to?http://127.0.0.1/cat.png", "'127.0.0.1' is not among the --allowed-media-domains"),
        ("/to?http://other.test/cat.png", "'other.test' is not among"),
        ("/to?file:///etc/passwd", "is not an address of http or https"),
        ("/to/again", "redirects more than 3 times"),
    ],
)
def test_what_is_not_allowed_is_not_fetched(host, path, message, monkeypatch):
    monkeypatch.setattr(media, "SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(RequestError, match=message):
        Fetcher(HOSTS).fetch(host + path)
    assert time.monotonic() - started < DEADLINE


def test_a_server_fetches_from_allowed_hosts_only(serving, seeing, host):
    """From the request to the tokens of the picture. A redirect is checked as the first address is."""
    with serving({}, folder=str(seeing), allowed_media_domains=("good.test",)) as server:
        choices = server.post("/v1/chat/completions", body(URL)).json()["choices"]
        for path in ("/seen.png", "/to?/seen.png"):
            assert server.post("/v1/chat/completions", body(host + path)).json()["choices"] == choices
        given = server.post("/v1/responses", response_body(f"{host}/seen.png")).json()
        assert given["usage"]["input_tokens"] == 2 + TOKENS
        for url, message in (
            ("http://private.test/cat.png", "'private.test' is not among the --allowed-media-domains"),
            (f"{host}/to?http://private.test/cat.png", "'private.test' is not among"),
            (f"{host}/none", "answers with status 404"),
            (f"{host}/cat.png", "none of JPEG, PNG"),
        ):
            for path, asked in (("chat/completions", body(url)), ("responses", response_body(url))):
                answer = server.post(f"/v1/{path}", asked)
                assert answer.status_code == 400
                assert message in answer.json()["error"]["message"]
        server.assert_idle()


def test_the_option_of_the_command_names_the_hosts(start, seeing):
    """An allowed name of this machine is still one in a private network."""
    domains = [word for host in ("good.test", "127.0.0.1") for word in ("--allowed-media-domains", host)]
    server = start(seeing, "--dtype", "float32", *domains)
    url = f"{server.wait_ready()}/v1/chat/completions"
    for given, message in (
        ("http://127.0.0.1:9/cat.png", "'127.0.0.1' is in a private network"),
        ("http://127.0.0.2:9/cat.png", "'127.0.0.2' is not among the --allowed-media-domains"),
    ):
        answer = httpx2.post(url, json=body(given), timeout=DEADLINE)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user@good.test/", "is not an address of http or https"),
        ("http://good.test@evil.test/", "is not an address of http or https"),
        ("http://good.test.evil.test/", "'good.test.evil.test' is not among"),
        ("http://good.test/a\r\nHost: b", "printable characters"),
        ("http://good.test/" + "a" * 3000, "at most 2048"),
        ("ftp://good.test/", "is not an address of http or https"),
        ("http://good.test:99999/", "can't be fetched"),
    ],
)
def test_odd_addresses_are_refused(url, message):
    with pytest.raises(RequestError, match=message):
        Fetcher(HOSTS).fetch(url)
