"""`armllm run-batch`: every line is answered as the server would, in the order of the file."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from armllm.cli import main

BODY = {"model": "smoke", "max_tokens": 4, "temperature": 0}


def line(number, url, **body):
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**BODY, **body}}


def write(path, lines):
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return str(path)


def batch(folder, source, target, *options):
    line = ["run-batch", "-i", source, "-o", target, "--model", str(folder), "--dtype", "float32"]
    return main([*line, "--served-model-name", "smoke", *options])


def test_requests_are_answered_in_order_and_failures_are_named(folder, tmp_path, capsys):
    source = write(
        tmp_path / "in.jsonl",
        [
            line(1, "/v1/completions", prompt="A wheel left the workshop"),
            line(2, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}]),
            {**line(3, "/v1/embeddings"), "body": {"input": "Hello", "model": "smoke"}},
            line(4, "/v1/completions", prompt="x", temperature=-1),
            line(5, "/v1/completions", prompt="x", stream=True),
            line(6, "/v1/nothing"),
            line(7, "/v1/completions", prompt="x", model="another"),
            {**line(8, "/v1/embeddings"), "body": {"input": "Hello", "encoding_format": "bytes"}},
        ],
    )
    target = tmp_path / "out.jsonl"
    assert batch(folder, source, str(target), "--api-server-count", "1") == 1
    assert "3 requests answered, 5 failed" in capsys.readouterr().err
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{number}" for number in range(1, 9)]
    assert [answer["response"]["status_code"] for answer in answers] == [
        200,
        200,
        200,
        400,
        400,
        400,
        404,
        400,
    ]
    assert answers[0]["response"]["body"]["choices"][0]["text"] == " at 6:40"
    assert answers[0]["error"] is None
    assert answers[1]["response"]["body"]["object"] == "chat.completion"
    assert answers[3]["error"]["param"] == "temperature"
    assert "stream must be false" in answers[4]["error"]["message"]
    assert "/v1/embeddings" in answers[5]["error"]["message"]
    assert answers[7]["error"]["param"] == "encoding_format"


def test_any_text_that_json_allows_is_read_and_written(folder, tmp_path):
    """It would catch lines cut at other ends of lines than JSON's, and a name that is no UTF-8."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    request = {**line(1, "/v1/completions", prompt="one\u2028two\x85three"), "custom_id": "\ud83d"}
    source.write_text(json.dumps(request).replace("\\u2028", "\u2028") + "\r\n", encoding="utf-8")
    assert batch(folder, str(source), str(target)) == 0
    assert json.loads(target.read_text())["custom_id"] == "\ud83d"


def test_answers_of_an_earlier_run_stay_until_the_model_is_loaded(tmp_path):
    source = write(tmp_path / "in.jsonl", [line(1, "/v1/completions", prompt="x")])
    (target := tmp_path / "out.jsonl").write_text("of an earlier run")
    assert batch("/nowhere", source, str(target)) == 1
    assert target.read_text() == "of an earlier run"


def test_the_input_is_not_overwritten(tmp_path, capsys):
    source = write(tmp_path / "in.jsonl", [line(1, "/v1/completions", prompt="x")])
    (link := tmp_path / "link").symlink_to(source)
    before = Path(source).read_text()
    assert batch("/nowhere", source, str(link)) == 2
    assert "it is the input file" in capsys.readouterr().err
    assert Path(source).read_text() == before


def test_a_full_disk_is_named(folder, tmp_path, capsys):
    source = write(tmp_path / "in.jsonl", [line(1, "/v1/completions", prompt="x", max_tokens=1)])
    assert batch(folder, source, "/dev/full") == 3
    assert "/dev/full: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "in.jsonl: No such file"),
        ("", "there is no request in it"),
        ("{}\n", "line 1: a request needs custom_id"),
        ("\n{\n", "line 2: not JSON"),
        ("[" * 100000 + "\n", "line 1: not JSON"),
        ('{"custom_id": 1, "method": "POST", "url": "/", "body": {}}', "custom_id must be a text"),
        ("\xff", "in.jsonl"),
    ],
)
def test_a_wrong_file_is_one_line_before_a_model_is_loaded(tmp_path, capsys, text, message):
    source = tmp_path / "in.jsonl"
    if text is not None:
        source.write_bytes(text.encode("latin-1"))
    assert batch("/nowhere", str(source), str(tmp_path / "out.jsonl")) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    if text is None:
        source.write_text('{"custom_id": "1", "method": "POST", "url": "/", "body": {}}')
        assert batch("/nowhere", str(source), str(tmp_path / "no" / "out.jsonl")) == 2
        assert "--output-file" in capsys.readouterr().err


class Store(http.server.BaseHTTPRequestHandler):
    """Files over HTTP."""

    def do_GET(self):
        self.send_response(200 if self.path in self.server.files else 404)
        self.end_headers()
        self.wfile.write(self.server.files.get(self.path, b""))

    def do_PUT(self):
        self.server.files[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments):
        """Say nothing."""


def test_files_may_be_on_a_server(folder, capsys):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        server.files = {"/in": json.dumps(line(1, "/v1/completions", prompt="Hello")).encode()}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert batch(folder, f"{url}/in", f"{url}/out") == 0
        assert json.loads(server.files["/out"])["custom_id"] == "r1"
        assert batch(folder, f"{url}/nothing", f"{url}/out") == 2
        assert "404" in capsys.readouterr().err
        server.shutdown()
