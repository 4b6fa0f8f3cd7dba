#!/usr/bin/env python3
"""A RAP tool server for tests: it serves a manifest, takes every invocation, and does nothing with it.

The test answers through the callback itself, when and as often as it likes. Standard library only.

As a module:

    with FakeToolServer(["srv_echo"]) as server:
        server.url                          # base URL, the `server_url` of a tool set
        server.wait_for_invocation("th-1")  # the body of the next invocation of that thread

As a process, for tests in other languages:

    python fake_tool_server.py srv_echo     prints {"port": N}, then serves
    GET /_seen                              {"invocations": […], "notices": [[path, body], …]}
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST_PATH = "/.well-known/rap-toolset"
INVOKE_PATH = "/invoke"
SEEN_PATH = "/_seen"


def tool(name):
    """A tool that takes any object."""
    return {"name": name, "description": f"Test tool {name}", "inputSchema": {"type": "object", "additionalProperties": True}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        fake = self.server.fake
        if self.path == MANIFEST_PATH:
            self.answer(200, {"name": "fake", "endpoint": fake.url + INVOKE_PATH, "tools": [tool(name) for name in fake.tools]})
        elif self.path == SEEN_PATH:
            self.answer(200, {"invocations": fake.invocations, "notices": fake.notices})
        else:
            self.answer(404, {"error": "no such page"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        with self.server.fake.changed:
            if self.path == INVOKE_PATH:
                self.server.fake.invocations.append(body)
            else:
                self.server.fake.notices.append([self.path, body])
            self.server.fake.changed.notify_all()
        self.answer(200, {})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class FakeToolServer:
    """Serves on a free port of the loopback interface from the moment it is made until `stop`."""

    def __init__(self, tools, port=0):
        self.tools = tools
        self.invocations = []
        self.notices = []
        self.changed = threading.Condition()
        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.http.fake = self
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def of_thread(self, group_id):
        return [i for i in self.invocations if i.get("group_id") == group_id]

    def wait_for_invocation(self, group_id, count=1, timeout=60):
        """The `count`-th invocation of a thread; TimeoutError if it does not come."""
        end = time.monotonic() + timeout
        with self.changed:
            while len(self.of_thread(group_id)) < count:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{len(self.of_thread(group_id))} of {count} invocations for {group_id} after {timeout} s")
                self.changed.wait(left)
            return self.of_thread(group_id)[count - 1]

    def stop(self):
        self.http.shutdown()
        self.http.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


if __name__ == "__main__":
    server = FakeToolServer(sys.argv[1:] or ["srv_echo"])
    print(json.dumps({"port": server.port}), flush=True)
    threading.Event().wait()
