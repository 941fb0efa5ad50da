"""Runs short programs and says which did more than compute, read and print. It is what
TestPrintingSound holds a proof against.

Each line of input is {"libraries": [...], "names": [...]} and is answered with what each library has
of the names, or a list of programs, which are run one after the other in a process of their own
and answered with those that did more, and what.
"""
import importlib
import json
import os
import resource
import signal
import sys

CHANGES = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.lchown", "os.link",
    "os.symlink", "os.truncate", "os.utime", "os.putenv", "os.unsetenv", "os.kill", "os.killpg",
    "os.setxattr", "os.removexattr", "os.chdir", "os.chroot", "pty.spawn", "signal.pthread_kill",
    "shutil.copyfile", "shutil.copymode", "shutil.copystat", "shutil.copytree", "shutil.move",
    "shutil.rmtree", "shutil.chown", "shutil.make_archive", "shutil.unpack_archive", "socket.connect",
    "socket.bind", "socket.sendto", "socket.sendmsg", "urllib.Request", "ftplib.connect",
    "smtplib.connect", "ctypes.dlopen", "ctypes.dlsym", "webbrowser.open", "sqlite3.connect",
    "tempfile.mkstemp", "tempfile.mkdtemp", "builtins.breakpoint", "pickle.find_class", "code.__new__",
    "syslog.openlog", "resource.setrlimit", "resource.prlimit",
)
WATCHED = frozenset(CHANGES) | {"open", "subprocess.Popen", "compile", "exec"}
# What the standard library itself asks the system with.
ASKS = {"uname", "ip", "ifconfig", "arp", "lanscan", "ldconfig", "gcc", "ld", "objdump", "file"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

found = None  # what the program that runs now did


def note(what):
    if found is not None:
        found.append(what)


def hook(event, args):
    if found is None or event not in WATCHED:
        return
    caller = sys._getframe(1).f_code.co_filename
    if event == "open":
        mode, flags = args[1] or "", args[2] or 0
        if args[0] != os.devnull and (set("wax+") & set(mode) or flags & WRITES):
            note(f"opens {args[0]!r} to write")
    elif event == "subprocess.Popen":
        if os.path.basename(str(args[0])) not in ASKS or caller == "<probe>":
            note(f"starts {args[0]!r}")
    elif event in ("compile", "exec"):
        if caller == "<probe>":
            note(f"{event}s a text")
    elif "subprocess" not in caller:
        note(event)


def late(*_):
    note("has no end")
    raise TimeoutError


def run(programs):
    global found
    did = []
    for code in programs:
        try:
            program = compile(code, "<probe>", "exec")
        except (SyntaxError, ValueError):
            continue
        found = mine = []
        try:
            signal.setitimer(signal.ITIMER_REAL, 2)
            exec(program, {"__name__": "__main__"})
        except BaseException:  # what a program fails by is its own affair
            pass
        finally:
            found = None
            signal.setitimer(signal.ITIMER_REAL, 0)
        if mine:
            did.append([code, mine[0]])
    return did


def apart(programs):
    """Runs programs in a child."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        sys.dont_write_bytecode = True
        devnull = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(devnull, fd)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        signal.signal(signal.SIGALRM, late)
        sys.argv = ["-c"]
        sys.addaudithook(hook)
        did = run(programs)
        with os.fdopen(w, "wb") as f:
            f.write(json.dumps(did).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        said = f.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(said) if said else [[f"{len(programs)} programs", f"ended with status {status}"]]


def members(asked):
    """The names that a library has, and those that what it has has."""
    names, have = set(asked["names"]), []
    for library in asked["libraries"]:
        try:
            module = importlib.import_module(library)
        except Exception:
            continue
        for name in sorted(names & set(dir(module))):
            have.append([library, name])
            thing = getattr(module, name)
            if isinstance(thing, type(os)) or isinstance(thing, type) and thing.__module__ == library:
                for below in sorted(names & set(dir(thing))):
                    have.append([library, name + "." + below])
    return have


answers = os.fdopen(os.dup(1), "w")
sys.stdout = open(os.devnull, "w")  # some libraries print when they are loaded
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(members(asked) if isinstance(asked, dict) else apart(asked)), file=answers, flush=True)
