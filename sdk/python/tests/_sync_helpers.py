"""What the synchronous tests do at once, with threads."""
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import carrel

CLIENT = carrel.Client


def prepared():
    pass  # nothing is in the way of threads


def gather(functions):
    def call(f):
        try:
            return f()
        except Exception as e:
            return e

    functions = list(functions)
    with ThreadPoolExecutor(min(64, len(functions))) as pool:
        return list(pool.map(call, functions))


def begin(function):
    return Beside(function)


class Beside:
    def __init__(self, function):
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(function)

    def cancel(self):
        return None  # a thread cannot be cancelled

    def done(self):
        return self._future.done()

    def result(self):
        try:
            return self._future.result(60)
        finally:
            self._pool.shutdown(wait=False)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not become true in a minute")
        time.sleep(0.02)


class Cutter:
    def __init__(self, up=None, down=None):
        self.up, self.down = up, down
        self.connections = 0

    def __enter__(self):
        self._to = os.environ["CARREL_TEST_SOCKET"]
        self.path = os.path.join(os.environ["CARREL_TEST_DIR"], f"cut-{os.getpid()}-{id(self):x}.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.unlink(self.path)

    def _accept(self):
        while True:
            try:
                c, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._to)
            threading.Thread(target=self._both, args=(c, far), daemon=True).start()

    def _both(self, c, far):
        with c, far:
            up = threading.Thread(target=self._copy, args=(c, far, self.up), daemon=True)
            up.start()
            self._copy(far, c, self.down)
            up.join()

    @staticmethod
    def _copy(r, w, left):
        try:
            while data := r.recv(4096):
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                w.sendall(data)
                if left == 0:
                    break
        except OSError:
            pass
        for s in (r, w):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
