"""Run commands in a workspace, with input, live output and an error."""
import carrel

with carrel.Client() as client:
    ws = client.workspaces.create("example-commands")
    try:
        print(ws.exec(["echo", "hello"]).text, end="")
        print(ws.exec(["sort"], input="b\na\n").check().text, end="")
        with ws.start_command(["sh", "-c", "read name; echo hello $name"], stdin=True) as command:
            command.write(b"carrel\n")
            for output in command:
                print(output.stream, output.data.decode(), end="")
        try:
            ws.exec(["no-such-program"])
        except carrel.errors.NotFound as e:
            print(e.code, "cannot run" in str(e))
    finally:
        ws.destroy(purge=True)

# Output:
# hello
# a
# b
# stdout hello carrel
# not_found True
