"""Every row of docs/compatibility.md that says "works" for the Python SDK of E2B, against a carrel that the environment names."""
import os
import time
import urllib.error
import urllib.parse
import urllib.request

from e2b import CommandExitException, PtySize, Sandbox, SandboxQuery, Template, TimeoutException, Volume
from e2b.api.client.api.sandboxes import get_v_2_sandboxes_sandbox_id_logs
from e2b.api.client.models import LogLevel
from e2b.api.client_sync import get_api_client
from e2b.connection_config import ConnectionConfig
from e2b.exceptions import InvalidArgumentException, NotFoundException, SandboxException, SandboxNotRunningException


def same(what, got, want):
    if got != want:
        raise SystemExit(f"{what}: {got!r}, want {want!r}")


def fails(what, kind, f):
    try:
        got = f()
    except kind as e:
        return e
    raise SystemExit(f"{what}: no error but {got!r}")


sb = Sandbox.create(timeout=120, metadata={"k": "v 1", "ü": "&="}, envs={"FOO": "bar"})
# commands
r = sb.commands.run("echo hi $FOO $X; echo err >&2; pwd", envs={"X": "y"}, cwd="/tmp")
same("run", (r.stdout, r.stderr, r.exit_code), ("hi bar y\n/tmp\n", "err\n", 0))
seen = []
sb.commands.run("echo a; sleep 0.2; echo b", on_stdout=seen.append)
same("callbacks", "".join(seen), "a\nb\n")
e = fails("exit", CommandExitException, lambda: sb.commands.run("exit 3"))
same("exit code", e.exit_code, 3)
fails("deadline", TimeoutException, lambda: sb.commands.run("sleep 60", timeout=1))
same("ended at its deadline", sb.commands.run("pgrep -c -x sleep || true").stdout, "0\n")
fails("another user", Exception, lambda: sb.commands.run("id", user="root"))
h = sb.commands.run("cat", background=True, stdin=True)
same("list", [p.pid for p in sb.commands.list()], [h.pid])
sb.commands.send_stdin(h.pid, "line\n")
sb.commands.close_stdin(h.pid)
same("stdin", h.wait().stdout, "line\n")
h = sb.commands.run("sleep 100", background=True)
same("kill", (h.kill(), sb.commands.kill(99999)), (True, False))
same("killed", fails("wait", CommandExitException, h.wait).exit_code, -1)
h = sb.commands.run("while ! test -e go; do sleep 0.05; done; echo went", background=True)
again = sb.commands.connect(h.pid)
sb.files.write("go", "")
same("connect", again.wait().stdout, "went\n")
# files
same("write", sb.files.write("a/b.txt", "hello").path, "/home/work/a/b.txt")
same("read", sb.files.read("a/b.txt"), "hello")
same("bytes", bytes(sb.files.read("a/b.txt", format="bytes")), b"hello")
same("stream", b"".join(sb.files.read("a/b.txt", format="stream")), b"hello")
blob = bytes(range(256)) * 4096
sb.files.write("big", blob)
same("a megabyte", bytes(sb.files.read("big", format="bytes")) == blob, True)
same("several", [f.name for f in sb.files.write_files([{"path": "m/1", "data": "1"}, {"path": "m/2", "data": b"22"}])], ["1", "2"])
same("list", [(e.name, e.type.value, e.size, e.permissions) for e in sb.files.list("a")], [("b.txt", "file", 5, "-rw-r--r--")])
same("depth", sorted(e.path for e in sb.files.list("/home/work/m", depth=2)), ["/home/work/m/1", "/home/work/m/2"])
same("exists", (sb.files.exists("a/b.txt"), sb.files.exists("nope")), (True, False))
fails("no such file", NotFoundException, lambda: sb.files.read("nope"))
same("make_dir", (sb.files.make_dir("d1/d2"), sb.files.make_dir("d1/d2")), (True, False))
sb.files.write("plain", "p")
for what, f in {
    "list of a file": lambda: sb.files.list("plain"), "make_dir of a file": lambda: sb.files.make_dir("plain"),
    "make_dir below one": lambda: sb.files.make_dir("plain/x"), "read of a directory": lambda: sb.files.read("d1"),
    "write to one": lambda: sb.files.write("d1", "x"), "watch of a file": lambda: sb.files.watch_dir("plain"),
}.items():
    fails(what, InvalidArgumentException, f)
same("rename", sb.files.rename("a/b.txt", "c/d.txt").path, "/home/work/c/d.txt")
sb.files.remove("c")
same("removed", sb.files.exists("c"), False)
w = sb.files.watch_dir("d1")
sb.files.write("d1/seen.txt", "1")
for _ in range(100):
    events = [(e.name, e.type.value) for e in w.get_new_events()]
    if events:
        break
    time.sleep(0.05)
same("watch", ("seen.txt", "create") in events, True)
w.stop()
request = urllib.request.Request(sb.download_url("d1/seen.txt", use_signature_expiration=60), headers={"E2b-Sandbox-Id": sb.sandbox_id})
same("signed URL", urllib.request.urlopen(request).read(), b"1")
upload = urllib.request.Request(sb.upload_url("d1/up.txt", use_signature_expiration=60), data=b"up", method="POST",
                                headers={"E2b-Sandbox-Id": sb.sandbox_id, "Content-Type": "application/octet-stream"})
same("signed upload", (urllib.request.urlopen(upload).status, sb.files.read("d1/up.txt")), (200, "up"))
# git
sb.git.init("repo", initial_branch="main")
sb.git.configure_user("A", "a@example.org")
sb.files.write("repo/a.txt", "a")
sb.git.add("repo")
sb.git.commit("repo", "first")
sb.git.create_branch("repo", "next")
branches = sb.git.branches("repo")
same("branches", (branches.current_branch, sorted(branches.branches)), ("next", ["main", "next"]))
fails("a clone that no rule allows", CommandExitException, lambda: sb.git.clone("https://git.example/x.git", "x"))
fails("volumes", Exception, Volume.list)
same("templates", Template.exists("base"), False)
# terminals
out = bytearray()
p = sb.pty.create(PtySize(rows=24, cols=80))
sb.pty.resize(p.pid, PtySize(rows=30, cols=100))
sb.pty.send_stdin(p.pid, b"stty size; exit 0\n")
p.wait(on_pty=out.extend)
same("terminal", b"30 100" in bytes(out), True)
p = sb.pty.create(PtySize(rows=24, cols=80))
same("kill of a terminal", p.kill(), True)
# ports
sb.commands.run("python3 -m http.server --bind 127.0.0.1 8000", background=True)
host, at, page = sb.get_host(8000), urllib.parse.urlsplit(os.environ["E2B_API_URL"]), None
same("host of a port", host, f"8000-{sb.sandbox_id}.sandboxes.test")
for _ in range(200):
    asked = urllib.request.Request(f"http://{at.netloc}/d1/up.txt", headers={
        "Host": host, "E2b-Traffic-Access-Token": sb.traffic_access_token})
    try:
        page = urllib.request.urlopen(asked).read()
        break
    except urllib.error.HTTPError as e:
        same("before the server listens", e.code, 502)
        time.sleep(0.1)
same("a port", page, b"up")
# life
found = Sandbox.list(query=SandboxQuery(metadata={"k": "v 1", "ü": "&="})).next_items()
same("list of sandboxes", [x.sandbox_id for x in found], [sb.sandbox_id])
same("info", (sb.get_info().metadata["k"], sb.get_info().state.value), ("v 1", "running"))
before = sb.get_info().end_at
sb.set_timeout(600)
same("timeout", sb.get_info().end_at > before, True)
same("metrics", sb.get_metrics()[0].mem_used > 0, True)
logs = get_v_2_sandboxes_sandbox_id_logs.sync_detailed(
    sb.sandbox_id, client=get_api_client(ConnectionConfig()), search="exit code 3", level=LogLevel.WARN).parsed.logs
same("logs", [(e.level, "exit 3" in e.message, e.fields["exit_code"]) for e in logs], [(LogLevel.WARN, True, "3")])
same("pause", sb.pause(), True)
same("paused", (sb.get_info().state.value, sb.is_running()), ("paused", False))
sb = Sandbox.connect(sb.sandbox_id)
same("resumed", sb.commands.run("echo back").stdout, "back\n")
# the end of the time
kept = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause"})
woken = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
same("what becomes of it", [x.get_info().lifecycle["auto_resume"] for x in (sb, kept, woken)], [False, False, True])
mark = woken.commands.run("echo it > kept; sleep 1000", background=True)
for x in (kept, woken):
    for _ in range(200):
        if x.get_info().state.value == "paused":
            break
        time.sleep(0.05)
same("paused at the end", [x.get_info().state.value for x in (kept, woken)], ["paused", "paused"])
same("not woken by a question", woken.is_running(), False)
fails("not woken", SandboxNotRunningException, lambda: kept.files.list("/"))
same("woken", (woken.files.read("kept"), [p.pid for p in woken.commands.list()]), ("it\n", [mark.pid]))
same("connected", kept.connect(timeout=60).commands.run("echo back").stdout, "back\n")
same("paused without memory", woken.pause(mode="filesystem"), True)
same("its time stands still", woken.get_info().end_at.year, 9999)
same("and back without what ran", (woken.connect(timeout=60).commands.list(), woken.files.read("kept")), ([], "it\n"))
for x in (kept, woken):
    same("kill", x.kill(), True)
gone = Sandbox.create(timeout=60)
h = gone.commands.run("sleep 100", background=True)
gone.kill()
fails("a command whose sandbox is killed", SandboxNotRunningException, h.wait)
fails("one whose sandbox reaches its timeout", SandboxNotRunningException, lambda: Sandbox.create(timeout=2).commands.run("sleep 100"))
fails("what would be missed", SandboxException, lambda: Sandbox.create(network={"egress_proxy": {"address": "p.example:1"}}))
same("it knows where it is", sb.commands.run("echo $E2B_SANDBOX_ID").stdout, sb.sandbox_id + "\n")
net = Sandbox.create(timeout=60, network={"allow_out": ["one.example", "two.example"]})
same("network", sorted(net.get_info().network["allow_out"]), ["one.example", "two.example"])
net.update_network({"allow_out": ["two.example", "three.example"]})
same("another network", sorted(net.get_info().network["allow_out"]), ["three.example", "two.example"])
net.kill()
fails("a snapshot", SandboxException, lambda: sb.create_snapshot())
others = [Sandbox.create(timeout=60, metadata={"page": "x"}) for _ in range(3)]
pages = Sandbox.list(query=SandboxQuery(metadata={"page": "x"}), limit=2)
same("pages", (len(pages.next_items()), pages.has_next, len(pages.next_items()), pages.has_next), (2, True, 1, False))
for x in others:
    same("kill", x.kill(), True)
same("kill", (sb.kill(), sb.kill(), sb.is_running()), (True, False, False))
fails("one that is gone", SandboxException, lambda: sb.commands.run("true"))
fails("a wrong key", Exception, lambda: Sandbox.create(api_key="e2b_00"))
print("all rows hold")
