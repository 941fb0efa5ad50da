# Tries, in a user and mount namespace of its own, what must stay impossible there: to
# uncover, take away or change a mount that it was given, and to use its capabilities on
# anything outside. Each success is a line "REACHED what"; what was tried is counted.
import ctypes, os, select, signal, socket, sys

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, NEWPID, NEWCGROUP = 0x20000, 0x10000000, 0x20000000, 0x2000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, DETACH = 1, 2, 4, 32, 4096, 16384, 2
PIVOT_ROOT, KEYCTL, BPF = 155, 250, 321
tried = 0


def call(f, *a):
    ctypes.set_errno(0)
    r = f(*a)
    return r, ctypes.get_errno()


def attempt(what, ok):
    global tried
    tried += 1
    if ok:
        print("REACHED", what, flush=True)


def attempts(what, f):
    """f raises OSError where it is refused, and else returns whether it went too far."""
    try:
        attempt(what, f() is not False)
    except OSError:
        attempt(what, False)


def mount(source, target, kind, flags, data=None):
    enc = lambda s: s.encode() if isinstance(s, str) else s
    r, e = call(libc.mount, enc(source), enc(target), enc(kind), ctypes.c_ulong(flags), enc(data))
    if r != 0:
        raise OSError(e, os.strerror(e))


def umount(target):
    r, e = call(libc.umount2, target.encode(), DETACH)
    if r != 0:
        raise OSError(e, os.strerror(e))


def mounts():
    for line in open("/proc/self/mountinfo"):
        f = line.split(" ")
        yield f[4].replace("\\040", " "), f[5].split(",")


def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def in_child(f):
    """Runs f in a child: it may change namespaces. Its exit code is 0 if it went too far."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if f() is not False else 1
        except OSError:
            pass
        except BaseException as e:
            print("REACHED an error of the test:", e, flush=True)
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def namespace(flags):
    r, e = call(libc.unshare, flags)
    if r != 0:
        raise OSError(e, os.strerror(e))


def remounted(point, options):
    """Takes a mount's restrictions off, one by one and together."""
    keep = {"ro": RDONLY, "nosuid": NOSUID, "nodev": NODEV}
    have = sum(v for k, v in keep.items() if k in options)
    for drop in [v for k, v in keep.items() if k in options]:
        try:
            mount(None, point, None, REMOUNT | BIND | (have & ~drop))
        except OSError:
            continue
        return True
    return False


def fresh(kind, flags):
    def f():
        namespace(flags)
        if os.fork() != 0: # a pid namespace begins with a child
            return os.wait()[1] == 0
        try:
            os.mkdir("/tmp/fresh-" + kind)
            mount(kind, "/tmp/fresh-" + kind, kind, 0)
        except OSError:
            os._exit(1)
        os._exit(0)
    return f


def cgroup(kind, data):
    def f():
        namespace(NEWCGROUP)
        d = "/tmp/cgroup-" + (data or kind)
        os.mkdir(d)
        mount(kind, d, kind, 0, data)
        for name in ("memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max", "cgroup.subtree_control", "cgroup.procs", "release_agent"):
            try:
                write(d + "/" + name, {"cgroup.procs": "0", "release_agent": "/bin/true", "cgroup.subtree_control": "+pids"}.get(name, "max"))
                print("REACHED", kind, name, flush=True)
            except OSError:
                pass
        return False
    return f


def many():
    """More namespaces than there may be."""
    r, children, got, ended = os.pipe(), [], b"", 0
    for _ in range(300):
        pid = os.fork()
        if pid == 0:
            os.close(r[0])
            try:
                namespace(NEWUSER)
                os.write(r[1], b".")
            except OSError:
                os._exit(1)
            signal.pause()
        children.append(pid)
    os.close(r[1])
    # Each either writes a byte or ends.
    while len(got) + ended < len(children):
        if select.select([r[0]], [], [], 0.05)[0]:
            got += os.read(r[0], 4096)
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended += 1
            children.remove(pid)
            children.append(0)
    for pid in children:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return len(got) > 256


def main():
    plant = "plant" in sys.argv
    uid, gid = os.getuid(), os.getgid()
    here = os.open(".", os.O_RDONLY)
    uts = os.uname().nodename
    if not plant:
        def two():
            namespace(NEWUSER)
            write("/proc/self/setgroups", "deny")
            write("/proc/self/uid_map", "0 %d 1\n1 %d 1" % (uid, uid - 1))
        attempt("an id that is not its own", in_child(two))
        namespace(NEWUSER | NEWNS)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", "0 %d 1" % uid)
        write("/proc/self/gid_map", "0 %d 1" % gid)
        if os.getuid() != 0:
            print("REACHED nothing: it is not root in its namespace")
            return
    points = [(p, o) for p, o in mounts() if not plant or p.startswith(sys.argv[2])]
    for point, options in points:
        attempt("less restricted: " + point, remounted(point, options))
    for parent in {os.path.dirname(p) or "/" for p, _ in points}:
        def uncover():
            d = "/tmp/uncovered-%d" % tried
            os.mkdir(d)
            mount(parent, d, None, BIND)
            # What has nothing mounted in it may be shown elsewhere.
            return any(p != parent and p.startswith(parent.rstrip("/") + "/") for p, _ in points)
        attempts("uncovered: " + parent, uncover)
    for point, _ in sorted(points, reverse=True):
        attempts("taken away: " + point, lambda: umount(point))
    if not plant:
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/user/max_user_namespaces", "/etc/passwd", "/usr/carrel-check"):
            attempts("write " + path, lambda: os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if path.startswith("/usr") else 0))) if path != "/proc/sysrq-trigger" else len(open(path).read()) > 0)
        attempt("a fresh /proc", in_child(fresh("proc", NEWPID)))
        attempt("a fresh /sys", in_child(fresh("sysfs", NEWPID)))
        attempt("the host's devices", in_child(fresh("devtmpfs", NEWPID)))
        for kind, data in (("cgroup2", None), ("cgroup", "memory"), ("cgroup", "pids"), ("cgroup", "cpu")):
            in_child(cgroup(kind, data))
        attempts("a device", lambda: os.mknod("/tmp/device", 0o20666, os.makedev(1, 3)))
        attempts("signal the executor", lambda: os.kill(1, 0))
        attempt("trace the executor", call(libc.ptrace, 0x4206, 1, 0, 0)[0] == 0)
        for ns in ("user", "mnt", "pid", "net"):
            attempts("enter the executor's " + ns, lambda: call(libc.setns, os.open("/proc/1/ns/" + ns, os.O_RDONLY), 0)[0] == 0)
        attempts("name the workspace", lambda: socket.sethostname("x"))
        attempts("a raw socket of the workspace", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
        for family in (17, 38, 40): # packet, alg, vsock
            attempts("socket family %d" % family, lambda: socket.socket(family, socket.SOCK_DGRAM, 0))
        attempt("keys", call(libc.syscall, KEYCTL, 0, -3, 0)[1] != 38)
        attempt("bpf", call(libc.syscall, BPF, 0, 0, 0)[1] != 38)

        # A mount keeps a name only where it is seen: in a root without it, the name would be free.
        def moved():
            try:
                mount("x", "/mnt", "tmpfs", 0)
                os.mkdir("/mnt/old")
                os.chdir("/mnt")
                if call(libc.syscall, PIVOT_ROOT, b".", b"old")[0] == 0:
                    os.chdir("/")
                    umount("/old")
            except OSError:
                pass
            try:
                os.chroot("/tmp")
            except OSError:
                pass
            os.rename(".git", ".gone", src_dir_fd=here, dst_dir_fd=here)
            os.mkdir(".git", dir_fd=here)
        attempt("a protected name, moved away", in_child(moved))
        # Last: the kernel takes its time to forget those that ended.
        attempt("more namespaces than there may be", many())
        if os.uname().nodename != uts:
            print("REACHED the workspace's name")
    print("tried", tried)


main()
