"""A small MCP server over stdio whose tools tell about its process, and end it. Standard library only."""

import json
import os
import sys
import time

TOOLS = ["pid", "die", "env", "shout", "nap"]

# A server that dies before it has said anything.
if os.environ.get("DIES_AT_ONCE"):
    sys.exit(1)


def call(name, arguments):
    if name == "pid":
        return str(os.getpid())
    if name == "die":
        os._exit(1)
    if name == "nap":
        time.sleep(30)
    if name == "shout":
        print("a secret for nobody", file=sys.stderr, flush=True)
        return "shouted"
    return json.dumps(dict(os.environ))


for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "stdio", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call":
        text = call(message["params"]["name"], message["params"].get("arguments"))
        result = {"content": [{"type": "text", "text": text}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
