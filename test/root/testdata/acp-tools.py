# An agent that speaks ACP, starts the server of tools that session/new names, and makes the calls that the prompt lists:
# {"calls": [[METHOD, PARAMS], ...], "hold": true}. The method wait waits for a file. It reports each answer as a message. With hold it does not end.
import json, os, subprocess, sys, time


def say(message):
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n")
    sys.stdout.flush()


class Tools:
    def __init__(self, server):
        env = dict(os.environ, **{v["name"]: v["value"] for v in server["env"]})
        self.child = subprocess.Popen([server["command"]] + server["args"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE)
        self.number = 0
        self.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.child.stdin.write(json.dumps(dict(message, jsonrpc="2.0")).encode() + b"\n")
        self.child.stdin.flush()

    def call(self, method, params):
        self.number += 1
        try:
            self.send({"id": self.number, "method": method, "params": params})
            while True:
                line = self.child.stdout.readline()
                if not line:
                    return {"closed": self.child.stderr.read().decode()}
                m = json.loads(line)
                if m.get("id") == self.number and "method" not in m:
                    return m
        except BrokenPipeError:
            return {"closed": self.child.stderr.read().decode()}


session = "s1"
servers = []
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        say({"id": m["id"], "result": {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}})
    elif m.get("method") == "session/new":
        servers = m["params"]["mcpServers"]
        say({"id": m["id"], "result": {"sessionId": session}})
    elif m.get("method") == "session/prompt":
        plan = json.loads(m["params"]["prompt"][0]["text"])
        with open("servers.json", "w") as f:
            json.dump(servers, f)
        tools = Tools(servers[0])
        for method, params in plan["calls"]:
            while method == "wait" and not os.path.exists(params["file"]):
                time.sleep(0.05)
            if method == "wait":
                continue
            answer = {"method": method, "answer": tools.call(method, params)}
            say({"method": "session/update", "params": {"sessionId": session, "update": answer}})
        with open("held", "w") as f:
            f.write("yes")
        while plan.get("hold"):
            time.sleep(1)
        say({"id": m["id"], "result": {"stopReason": "end_turn"}})
