"""The client against a daemon: CARREL_HOST and its sisters name it, CARREL_TEST_SOCKET is its Unix socket if it has no other.

Go tests of test/rootless bring the daemon up and run this. It needs nothing beside Python's standard library.
"""
import hashlib
import io
import json
import os
import tarfile
import unittest
import uuid
from contextlib import aclosing

import carrel
from carrel import errors
from carrel import messages as m

from ._async_helpers import CLIENT, Cutter, begin, gather, prepared, until

SAY = """say() { echo '{"jsonrpc":"2.0","method":"'"$1"'","params":'"$2"'}'; }; read -r prompt; """
WORKS = SAY + """say report_message '{"text":"hello '$WHO'"}'; say report_message '{"n":2}'; say report_completion '{}'"""
ON_FD = """read -r prompt <&5; echo '{"jsonrpc":"2.0","method":"report_completion","params":{"reason":"on '$CARREL_TASK_FD'"}}' >&5"""
WAITS = SAY + "say report_message '{}'; read -r stop; exit 0"
MANY = SAY + """for i in $(seq 40); do say report_message '{"text":"number '$i'"}'; done; say report_completion '{}'"""
ASKS = SAY + """echo '{"jsonrpc":"2.0","id":1,"method":"request_permission","params":{"title":"build","command":["make","all"]}}'
read -r answer; say report_completion '{}'"""
REVERSES = """
import socket
s = socket.create_server(("127.0.0.1", 8123))
print("ready", flush=True)
while True:
    c, _ = s.accept()
    data = b""
    try:
        while got := c.recv(65536):
            data += got
        c.sendall(data[::-1])
        c.close()
        print("whole", flush=True)
    except ConnectionResetError:
        print("reset", flush=True)
"""


class Suite(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        await prepared()
        self.client = CLIENT()
        self.ws = await self.client.workspaces.create("sdk-" + uuid.uuid4().hex[:12])

    async def asyncTearDown(self):
        await self.ws.destroy(purge=True)
        await self.client.close()

    async def test_exec(self):
        r = await self.ws.exec(
            ["sh", "-c", 'echo "$A"; pwd; cat; echo bad >&2; exit 3'], input="in é\n", env={"A": "vier é \"'\n"}, cwd="/tmp"
        )
        self.assertEqual((r.exit_code, r.stdout.decode(), r.stderr), (3, "vier é \"'\n\n/tmp\nin é\n", b"bad\n"))
        with self.assertRaisesRegex(errors.CommandFailed, "exit code is 3: bad"):
            r.check()
        self.assertEqual((await self.ws.exec(["true"])).check().stdout, b"")
        self.assertTrue(r.command_id.startswith("c-"))

    async def test_exec_takes_bytes(self):
        data = bytes(range(256)) * 17
        self.assertEqual((await self.ws.exec(["cat"], input=data)).stdout, data)

    async def test_large_input_and_output(self):
        data = os.urandom(1 << 20) * 10
        r = await self.ws.exec(["sh", "-c", "cat; head -c 100000 /dev/zero >&2"], input=data)
        self.assertTrue(r.stdout == data)
        self.assertEqual(len(r.stderr), 100000)
        r = await self.ws.exec(["head", "-c", "300000", "/dev/zero"], max_output=1000)
        self.assertEqual((len(r.stdout), r.stdout_lost), (1000, 299000))
        r = await self.ws.exec(["true"], input=data)  # which reads nothing of it
        self.assertEqual(r.exit_code, 0)

    async def test_output_as_it_comes(self):
        got = []
        r = await self.ws.exec(
            ["sh", "-c", "echo a; echo b >&2"], on_stdout=lambda b: got.append(("out", b)), on_stderr=lambda b: got.append(("err", b))
        )
        self.assertEqual((sorted(got), r.stdout), ([("err", b"b\n"), ("out", b"a\n")], b"a\n"))

    async def test_live_command(self):
        async with await self.ws.start_command(["sh", "-c", "read x; echo got $x; cat >&2; exit 5"], stdin=True) as c:
            await c.write(b"one\n")
            o = await c.__anext__()
            self.assertEqual((o.stream, o.data), ("stdout", b"got one\n"))
            await c.write(b"rest")
            await c.close_stdin()
            self.assertEqual([(o.stream, o.data) async for o in c], [("stderr", b"rest")])
            self.assertEqual(c.status.code, 5)
        async with await self.ws.start_command(["sleep", "600"]) as c:
            await c.signal(15)
            self.assertEqual((await c.wait()).signal, 15)
        async with await self.ws.start_command(["sleep", "600"]) as c:
            await c.stop(grace=0.1)
            self.assertNotEqual((await c.wait()).code, 0)

    async def test_terminal_of_a_command(self):
        async with await self.ws.start_command(["sh", "-c", "stty size; read x; stty size; echo $x"], terminal=(20, 70)) as c:
            seen = b""
            while b"20 70" not in seen:
                seen += (await c.__anext__()).data
            await c.resize(30, 80)
            await c.write(b"typed\n")
            async for o in c:
                seen += o.data
            self.assertIn(b"30 80", seen)
            self.assertEqual(c.status.code, 0)

    async def test_timeout(self):
        r = await self.ws.exec(["sleep", "600"], timeout=0.2, grace=0.1)
        self.assertTrue(r.status.timed_out)

    async def test_close_hangs_up(self):
        c = await self.ws.start_command(["sleep", "600"])
        self.assertIn(c.id, [x.command_id for x in await self.ws.commands()])
        await c.close()

        async def gone():
            return all(x.command_id != c.id or x.status for x in await self.ws.commands())

        await until(gone)

    async def test_cancel_hangs_up(self):
        b = await begin(lambda: self.ws.exec(["sh", "-c", "sleep 600; true"]))

        async def runs():
            return bool(await self.ws.commands())

        async def gone():
            return not await runs()

        await until(runs)
        if await b.cancel() is None:
            for c in await self.ws.commands():
                await self.ws.signal(c.command_id, 0, 0.1)
            self.assertNotEqual((await b.result()).exit_code, 0)
        await until(gone)

    async def test_detached(self):
        command = await self.ws.detach(["sh", "-c", "echo out; read x < /dev/null; sleep 0.2; echo more; exit 4"])
        logs = [x async for x in self.ws.logs(command, follow=True)]
        self.assertEqual(b"".join(x.data for x in logs), b"out\nmore\n")
        self.assertEqual((await self.ws.wait(command)).code, 4)
        self.assertEqual(logs[-1].status.code, 4)

    async def test_session(self):
        async with await self.ws.terminal("main", argv=["sh", "-c", "echo ready; read x; echo got $x; read y"]) as t:
            seen = b""
            while b"ready" not in seen:
                seen += await t.__anext__()
            await t.resize(30, 90)
            await t.write(b"words\n")
            while b"got words" not in seen:
                seen += await t.__anext__()
            async with await self.ws.terminal("main", read_only=True) as again:
                seen = b""
                while b"got words" not in seen:
                    seen += await again.__anext__()
                self.assertEqual(again.id, t.id)
        self.assertEqual([c.session for c in await self.ws.commands()], ["main"])
        with self.assertRaises(errors.NotFound):
            await self.ws.terminal("other", read_only=True)

    async def test_files(self):
        f = self.ws.files
        data = os.urandom(3 << 20)
        entry = await f.write("a/b/é.bin", data, parents=True, mode=0o600)
        self.assertEqual((entry.size, entry.mode), (len(data), 0o600))
        self.assertTrue(await f.read("a/b/é.bin") == data)
        self.assertEqual(await f.read("a/b/é.bin", offset=10, length=5), data[10:15])
        await f.write("text", "é\n")
        self.assertEqual(await f.read_text("text"), "é\n")
        with self.assertRaises(errors.AlreadyExists):
            await f.write("text", b"x", keep=True)
        with self.assertRaises(errors.AlreadyExists):
            await f.write("text", b"x" * (3 << 20), keep=True)
        await f.write("pieces", iter([b"a", b"b" * 600000, b""]))
        self.assertEqual((await f.stat("pieces")).size, 600001)
        await f.mkdir("d/e", parents=True)
        await f.move("text", "d/e/text")
        self.assertEqual([e.path for e in await f.list("d", depth=3)], ["e", "e/text"])
        await f.write(b"d/\xff", b"no UTF-8")
        self.assertEqual([e.raw_path for e in await f.list("d") if e.raw_path], [b"\xff"])
        self.assertEqual(await f.read(b"d/\xff"), b"no UTF-8")
        changed = await f.changes("d")
        self.assertEqual([c.file.path for c in changed.changes if c.file], ["e/text", ""])
        found = await f.search("d", text="é")
        self.assertEqual([(e.path, e.line, e.text) for e in found.matches], [("e/text", 1, "é".encode())])
        await f.remove("d", recursive=True)
        with self.assertRaises(errors.NotFound):
            await f.stat("d")
        with self.assertRaises(errors.NotFound):
            await f.read("missing")

    async def test_patches(self):
        f = self.ws.files
        self.assertEqual(await f.patches(), [])
        with self.assertRaises(errors.InvalidArgument):
            await f.undo("x")
        # What the program for files keeps of a change that made a file.
        change, kept = "p-0123456789abcdef", ".local/state/carrel/patches"
        await f.write("made", "text\n")
        await f.mkdir(kept, mode=0o700, parents=True)
        place = {"root": {"path": "/home/work", "dev": 0, "ino": 0}, "rel": "made"}
        entry = {"name": "made", "place": place, "action": "create", "temp": "", "old": "", "backup": ""}
        entry["new"] = hashlib.sha256(b"text\n").hexdigest()
        record = {"version": 1, "id": change, "state": "done", "entries": [entry]}
        await f.write(f"{kept}/{change}/record.json", json.dumps(record), parents=True)
        with self.assertRaises(errors.NotFound):
            await f.undo("p-00000000000000ff")
        self.assertEqual([(p.id, p.undone, p.files) for p in await f.patches()], [(change, False, ["/home/work/made"])])
        undoing = await f.undo(change)
        with self.assertRaises(errors.NotFound):
            await f.stat("made")
        self.assertEqual({p.id: (p.undone, p.undoes) for p in await f.patches()}, {change: (True, ""), undoing: (False, change)})
        with self.assertRaises(errors.FailedPrecondition):
            await f.undo(change)
        await f.undo(undoing)
        self.assertEqual(await f.read_text("made"), "text\n")

    async def test_trees(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            info = tarfile.TarInfo("t/x")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        self.assertEqual((await self.ws.files.unpack("tree", out.getvalue(), parents=True)).bytes, 3)
        packed = b"".join([p async for p in self.ws.files.pack("tree/t")])
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            self.assertEqual(tar.extractfile("t/x").read(), b"abc")

    async def test_watch_files(self):
        async with aclosing(self.ws.files.watch()) as events:
            self.assertEqual((await events.__anext__()).what, "ready")
            await self.ws.files.write("new", b"x")
            while (e := await events.__anext__()).path != "new":
                pass
            self.assertIn(e.what, ("create", "write"))

    async def test_life_and_events(self):
        async with aclosing(self.ws.events()) as events:
            b = await begin(lambda: _next(events, lambda e: e.event and e.event.state == "stopped"))

            async def told():
                await self.ws.start()
                await self.ws.stop()
                return b.done()

            await until(told)
            self.assertEqual((await b.result()).event.status, "ok")
        self.assertEqual((await self.ws.start()).info.state, "running")
        self.assertEqual((await self.client.workspaces.get(self.ws.ref)).info.key, self.ws.ref)
        self.assertIn(self.ws.ref, [w.info.key for w in await self.client.workspaces.list()])
        await self.ws.update(m.UpdateRequest(ttl_ms=3600_000))
        self.assertGreater((await self.ws.get()).expires_unix_ms, 0)
        try:
            await self.ws.pause()
            self.assertEqual((await self.ws.get()).state, "paused")
            await self.ws.resume()
        except errors.FailedPrecondition as e:  # a user's own carrel has no control groups on every host
            self.assertIn("takes a control group", str(e))
        self.assertEqual((await self.ws.stats()).key, self.ws.ref)
        self.assertTrue((await self.client.version()).version)
        self.assertIn("run", (await self.client.whoami()).permissions)

    async def test_egress(self):
        # It runs without a way out, so that its rules hold from its next start on.
        await self.ws.egress.allow("example.org", "@github")
        self.assertFalse((await self.ws.get()).egress)
        await self.ws.stop()
        await self.ws.egress.deny("bad.example.org")
        self.assertEqual([v.action for v in await self.ws.egress.test("example.org", "other.test")], ["allow", "deny"])
        await self.ws.egress.remove("@github")
        w = await self.ws.egress.rules()
        self.assertEqual((w.reach_allow, w.reach_deny), (["example.org"], ["bad.example.org"]))
        await self.ws.start()
        self.assertEqual((await self.ws.egress.connections()).open, [])

    async def test_secrets(self):
        if (await self.client.whoami()).kind == "token" and "secrets" not in (await self.client.whoami()).permissions:
            self.skipTest("skipped: the token has no permission for secrets")
        name, value = "T" + uuid.uuid4().hex[:8].upper(), "planted-" + uuid.uuid4().hex
        await self.client.secrets.set(name, value, hosts=["api.example.org"])
        await self.client.secrets.rotate(name, value + "x")
        kept = await self.client.secrets.list()
        self.assertEqual([s.hosts for s in kept if s.name == name], [["api.example.org"]])
        with self.assertRaises(errors.AlreadyExists) as e:
            await self.client.secrets.set(name, value, hosts=["api.example.org"])
        shown = repr(kept) + repr(m.SetSecretRequest(name=name, value=value)) + repr(self.client) + str(e.exception) + repr(e.exception)
        self.assertNotIn(value, shown)
        await self.client.secrets.remove(name)
        with self.assertRaises(errors.NotFound):
            await self.client.secrets.remove(name)

    async def test_errors(self):
        with self.assertRaises(errors.NotFound) as e:
            await self.client.workspaces("no-such-" + uuid.uuid4().hex).exec(["true"])
        self.assertEqual((e.exception.code, e.exception.request), ("not_found", "CommandService/Stream"))
        with self.assertRaisesRegex(errors.NotFound, "cannot run"):
            await self.ws.exec(["no-such-program"])
        with self.assertRaisesRegex(errors.InvalidArgument, "list of words"):
            await self.ws.exec("true")
        with self.assertRaises(errors.InvalidArgument):
            await self.client.call(m.CommandService.Wait, m.WaitRequest(workspace=self.ws.ref, command_id="../x"))
        with self.assertRaisesRegex(errors.InvalidArgument, "not valid UTF-8"):
            await self.ws.exec(["echo", "\udcff"])
        with self.assertRaisesRegex(errors.Unavailable, "no such socket; start carrel") as e:
            await CLIENT("unix:///nonexistent/carrel.sock").workspaces("x").exec(["true"])
        self.assertTrue(e.exception.remedy.startswith("start carrel"))
        with self.assertRaises(errors.DeadlineExceeded):
            command = await self.ws.detach(["sleep", "600"])
            await self.client.call(m.CommandService.Wait, m.WaitRequest(workspace=self.ws.ref, command_id=command), timeout=0.2)

    async def test_many_at_once(self):
        """1,000 commands, with 32 connections."""
        results = await gather([lambda i=i: self.ws.exec(["echo", str(i)]) for i in range(1000)])
        bad = [r for i, r in enumerate(results) if not isinstance(r, carrel.Result) or r.stdout != b"%d\n" % i]
        self.assertEqual(bad[:3], [])

    async def test_approvals(self):
        if not os.environ.get("CARREL_TEST_ASKS"):
            self.skipTest("skipped: no command of this daemon's policy takes an approval")
        with self.assertRaises(errors.NeedsApproval) as e:
            await self.ws.exec(["ask-me"], approval_wait=0)
        self.assertTrue(e.exception.approval.startswith("ap-"))
        self.assertEqual(e.exception.command, "carrel approvals approve " + e.exception.approval)
        self.assertIn(e.exception.approval, [a.id for a in await self.client.approvals.list(state="pending", workspace=self.ws.ref)])
        self.assertEqual((await self.client.approvals.get(e.exception.approval)).argv, ["ask-me"])
        async with aclosing(self.client.approvals.watch()) as pending:
            while (await pending.__anext__()).id != e.exception.approval:
                pass
        self.assertEqual((await self.client.approvals.deny(e.exception.approval, reason="no")).state, "denied")
        with self.assertRaises(errors.NeedsApproval) as again:  # it is asked about anew
            await self.ws.exec(["ask-me"], approval_wait=0)
        self.assertNotEqual(again.exception.approval, e.exception.approval)

    async def test_tasks(self):
        t = await self.ws.tasks.run(["sh", "-c", WORKS], "say hello", env={"WHO": "carrel"})
        answers = [a async for a in t.follow()]
        self.assertEqual([a.message.number for a in answers if a.message], [1, 2, 3, 4])
        self.assertEqual([a.message.kind for a in answers if a.message], ["prompt", "message", "message", "completion"])
        self.assertEqual(json.loads(answers[1].message.body), {"text": "hello carrel"})
        self.assertEqual((answers[-1].task.state, t.info.state), ("completed", "completed"))
        self.assertEqual([a.message.number async for a in t.follow(after=2) if a.message], [3, 4])
        self.assertEqual((await self.ws.tasks(t.id).wait()).state, "completed")
        self.assertEqual([x.id for x in await self.ws.tasks.list()], [t.id])
        on_fd = await (await self.ws.tasks.run(["sh", "-c", ON_FD], "speak", fd=5)).wait()
        self.assertEqual((on_fd.state, on_fd.reason), ("completed", "on 5"))
        failed = await (await self.ws.tasks.run(["sh", "-c", "exit 4"], "fail")).wait()
        self.assertEqual((failed.state, "exited with 4" in failed.reason), ("failed", True))

    async def test_a_task_is_stopped(self):
        t = await self.ws.tasks.run(["sh", "-c", WAITS], "wait", timeout=300)
        async with aclosing(t.follow()) as answers:
            while (await answers.__anext__()).message.kind != "message":
                pass
        self.assertEqual([a.message.number async for a in t.follow(now=True) if a.message], [1, 2])
        self.assertEqual((await t.get()).state, "running")
        self.assertEqual((await t.stop()).state, "stopped")
        self.assertEqual((await t.wait()).state, "stopped")
        with self.assertRaises(errors.NotFound):
            await self.ws.tasks("c-0123456789abcdef").get()

    async def test_what_a_task_asks(self):
        if not os.environ.get("CARREL_TEST_ASKS"):
            self.skipTest("skipped: this caller may not answer what a task asks")
        t = await self.ws.tasks.run(["sh", "-c", ASKS], "ask", approval_wait=60)
        async with aclosing(self.client.approvals.watch()) as pending:
            while (a := await pending.__anext__()).kind != "task.permission" or a.state != "pending":
                pass
        self.assertEqual(a.argv, ["make", "all"])
        await self.client.approvals.deny(a.id, reason="not now")
        bodies = [json.loads(x.message.body) async for x in t.follow() if x.message and x.message.kind == "answer"]
        self.assertEqual([(b["allowed"], "not now" in b["why"]) for b in bodies], [(False, True)])
        self.assertEqual(t.info.state, "completed")

    async def test_ports(self):
        with self.assertRaisesRegex(errors.Unavailable, "nothing listens"):
            await self.ws.ports.connect(8123)
        async with await self.ws.start_command(["/usr/bin/python3", "-c", REVERSES]) as c:
            self.assertEqual((await c.__anext__()).data, b"ready\n")
            async with await self.ws.ports.publish(8123) as published:
                self.assertEqual(published.port, 8123)
                data = os.urandom(1 << 20) * 3
                async with await self.ws.ports.connect(8123) as x:
                    await x.write(data)
                    await x.close_write()
                    got = b"".join([piece async for piece in x])
                    self.assertTrue(got == data[::-1])
                self.assertEqual((await c.__anext__()).data, b"whole\n")
                async with await self.ws.ports.connect(8123) as x:  # which goes without an end
                    await x.write(b"a part")
                self.assertEqual((await c.__anext__()).data, b"reset\n")
            async with await self.ws.ports.publish(8123) as published:
                await self.ws.stop()
                with self.assertRaises(errors.CarrelError):
                    await published.wait()
        with self.assertRaises(errors.FailedPrecondition):
            await self.ws.ports.connect(8123)
        with self.assertRaises(errors.InvalidArgument):
            await self.ws.ports.connect(0)

    async def test_resize(self):
        command = await self.ws.detach(["sh", "-c", "while [ $(stty size | tr ' ' x) != 31x91 ]; do sleep 0.05; done"], terminal=(20, 70))
        await self.ws.resize(command, 31, 91)
        self.assertEqual((await self.ws.wait(command)).code, 0)

    async def test_permissions(self):
        approvals = self.client.approvals
        with self.assertRaisesRegex(errors.PermissionDenied, "cannot (allow ask-me often|let token)"):  # no answer to it is remembered
            await approvals.allow(["ask-me", "often"], workspace=self.ws.ref)
        self.assertEqual(await approvals.permissions(workspace=self.ws.ref), [])
        with self.assertRaises((errors.NotFound, errors.PermissionDenied)):
            await approvals.revoke("al-0123456789abcdef")


async def _next(events, wanted):
    async for e in events:
        if wanted(e):
            return e
    raise AssertionError("the events ended")


class Cut(unittest.IsolatedAsyncioTestCase):
    """Connections that break at every few bytes: what was asked for is done once or not at all."""

    async def asyncSetUp(self):
        if not os.environ.get("CARREL_TEST_SOCKET"):
            self.skipTest("skipped: connections are cut on the way to a Unix socket")
        await prepared()
        self.client = CLIENT()
        self.ws = await self.client.workspaces.create("cut-" + uuid.uuid4().hex[:12])

    async def asyncTearDown(self):
        if os.environ.get("CARREL_TEST_SOCKET"):
            await self.ws.destroy(purge=True)
            await self.client.close()

    async def test_a_command_is_run_once(self):
        ran = lost = 0
        for n, limits in enumerate([{"up": x} for x in (1, 100, 250, 330)] + [{"down": x} for x in (0, 1, 40, 120, 200, 260, 330, 400)]):
            async with Cutter(**limits) as cut:
                other = CLIENT(f"unix://{cut.path}")
                try:
                    await other.workspaces(self.ws.ref).exec(["sh", "-c", f"echo x >> ran-{n}; echo {n}; cat /dev/null"])
                except errors.ConnectionLost as e:
                    lost += 1
                    self.assertIn("cannot tell how", str(e))
                self.assertEqual(cut.connections, 1)
                await other.close()

                async def over():
                    return not [c for c in await self.ws.commands() if c.status is None]

                await until(over)
            r = await self.ws.exec(["sh", "-c", f"wc -l < ran-{n} 2>/dev/null || echo 0"])
            self.assertIn(r.text.strip(), ("0", "1"))
            ran += int(r.text)
        self.assertGreater(lost, 5)
        self.assertGreater(ran, 0)

    async def test_a_task_is_run_once(self):
        async with Cutter(down=10) as cut:
            other = CLIENT(f"unix://{cut.path}")
            with self.assertRaises(errors.ConnectionLost):
                await other.workspaces(self.ws.ref).tasks.run(["sh", "-c", WORKS], "once")
            self.assertEqual(cut.connections, 1)
            await other.close()

        async def over():
            return all(t.state != "running" for t in await self.ws.tasks.list())

        await until(over)
        self.assertLess(len(await self.ws.tasks.list()), 2)

    async def test_messages_go_on_where_they_broke(self):
        t = await self.ws.tasks.run(["sh", "-c", MANY], "many")
        async with Cutter(down=1500) as cut:
            other = CLIENT(f"unix://{cut.path}")
            followed = other.workspaces(self.ws.ref).tasks(t.id)
            numbers = [a.message.number async for a in followed.follow(after=2) if a.message]
            self.assertEqual(numbers, list(range(3, 43)))
            self.assertGreater(cut.connections, 2)
            self.assertEqual(followed.info.state, "completed")
            await other.close()

    async def test_what_has_a_request_id_is_asked_again(self):
        key = "cut-" + uuid.uuid4().hex[:12]
        async with Cutter(down=10) as cut:
            other = CLIENT(f"unix://{cut.path}")
            with self.assertRaises(errors.ConnectionLost):
                await other.workspaces.create(key)
            self.assertEqual(cut.connections, 3)
            with self.assertRaises(errors.ConnectionLost):
                await other.whoami()
            self.assertEqual(cut.connections, 6)
            with self.assertRaises(errors.ConnectionLost):
                await other.workspaces(key).pause()
            self.assertEqual(cut.connections, 7)
            await other.close()
        self.assertEqual([w.info.key for w in await self.client.workspaces.list() if w.info.key == key], [key])
        await self.client.workspaces(key).destroy(purge=True)
