"""Run a task and follow what it reports, and reach what listens in its workspace."""
import json

import carrel

AGENT = """read -r prompt
echo '{"jsonrpc":"2.0","method":"report_message","params":{"text":"hello"}}'
echo '{"jsonrpc":"2.0","method":"report_completion","params":{}}'"""

with carrel.Client() as client:
    ws = client.workspaces.create("example-tasks")
    try:
        task = ws.tasks.run(["sh", "-c", AGENT], "Say hello")
        for answer in task.follow(after=1):  # 1 is the prompt
            if answer.message:
                print(answer.message.number, answer.message.kind, json.loads(answer.message.body))
        print(task.get().state)

        with ws.start_command(["/usr/bin/python3", "-um", "http.server", "--bind", "127.0.0.1", "8000"]) as server:
            next(server)  # it says that it listens
            with ws.ports.connect(8000) as connection:
                connection.write(b"GET / HTTP/1.0\r\n\r\n")
                print(b"".join(connection).splitlines()[0].decode())
    finally:
        ws.destroy(purge=True)

# Output:
# 2 message {'text': 'hello'}
# 3 completion {}
# completed
# HTTP/1.0 200 OK
