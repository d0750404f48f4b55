"""Speaks as llama.cpp's server does, as far as it is asked; the model's name says what is wrong with it.

Token i of an answer is the prompt's last id + 1 + i, one an event, a millisecond each.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--version" in sys.argv:
    print("version: 1 (fake)", file=sys.stderr)
    sys.exit(0)
given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
model = given["--model"].rpartition("/")[2]
if model == "broken":
    print("main: error: unable to load model", file=sys.stderr)
    sys.exit(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion"
        assert body["ignore_eos"]
        assert body["temperature"] == 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["n_predict"] - (model == "short")
        for i in range(count):
            time.sleep(0.001)
            if model == "characters" and i == 2:
                continue  # the token leaves a character unfinished
            self.event({"content": "x", "tokens": [body["prompt"][-1] + 1 + i], "stop": False})
            if model == "failing":
                self.event({"error": {"code": 500, "message": "out of slots"}})
        self.event({"content": "", "tokens": [], "stop": True, "timings": {"predicted_n": count}})
        self.wfile.write(b"0\r\n\r\n")

    def event(self, value: object) -> None:
        data = b"data: " + json.dumps(value).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
