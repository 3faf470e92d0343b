"""Sends every row of a run to a web tracker, by a logger of your own.

python examples/own_tracker.py [URL]

Each message is an HTTP POST with a JSON object. Without a URL, a small server on this machine receives the messages and
prints them. If the tracker cannot be reached, the logger is dropped with a warning, and the run continues.
"""

import json
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import capax

TIMEOUT_SECONDS = 5.0


class WebTracker(capax.Logger):
    """Posts the configuration of a run, its rows, and its end."""

    def __init__(self, url):
        self.url, self.name = url, ""

    def start(self, folder, config, first_step):
        self.name = folder.name
        self.post({"event": "start", "first_step": first_step, "config": config})

    def log(self, row):
        self.post({"event": "row", "row": row})

    def close(self):
        self.post({"event": "end"})

    def post(self, message):
        body = json.dumps({"run": self.name, **message}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()


class PrintingTracker(BaseHTTPRequestHandler):
    """A tracker that prints one line for each message."""

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        row = message.get("row")
        text = "" if row is None else f" {row['episode']}: return {row['return']:.1f}, cost {row['cost']:.1f}"
        print(f"tracker: {message['event']}{text}", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format, *args):
        """No line for each request."""


def local_tracker():
    """Start a tracker on a free port of this machine; returns its URL."""
    server = HTTPServer(("127.0.0.1", 0), PrintingTracker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else local_tracker()
    with tempfile.TemporaryDirectory() as folder:
        run = capax.train("capax/Integrator-v0", steps=400, preset="fast", loggers=[WebTracker(url)], out=folder)
        print(run)
