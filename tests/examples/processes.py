"""Shared by the tests of the examples: running programs, observed by their output."""
import contextlib
import csv
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PATIENCE = 60  # seconds until a test fails because something did not happen; successful tests never wait this long


class Program:
    """A running program; its lines, of stdout and stderr together, are kept as they come. Killed at the end of `with`.

    stdout: a file for that alone; the lines are then those of stderr."""

    def __init__(self, *command, env=None, stdout=None):
        streams = {"stdout": stdout, "stderr": subprocess.PIPE} if stdout else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, text=True,
                                        env={**os.environ, **(env or {})}, **streams)
        self._output = self.process.stdout or self.process.stderr
        self.lines = []
        self._queue = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._output:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._output.close()

    def wait_for(self, pattern):
        """The match in the next line that has one."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._queue.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line matches {pattern!r} yet:\n{self.output()}") from None
            if line is None:
                self._queue.put(None)
                raise AssertionError(f"the program has ended, and no line matched {pattern!r}:\n{self.output()}")
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match

    def end(self, within=PATIENCE):
        """Its exit status, once it has ended by itself and everything that it printed is in lines."""
        try:
            status = self.process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(queue.Empty):
                self._take_lines(0)
            raise AssertionError(f"still runs after {within} s:\n{self.output()}") from None
        self._take_lines(PATIENCE)
        return status

    def _take_lines(self, within):
        while (line := self._queue.get(timeout=within)) is not None:
            self.lines.append(line)
        self._queue.put(None)

    def output(self):
        return "\n".join(self.lines)

    def signal(self, number):
        self.process.send_signal(number)

    def children(self):
        """Its child processes, by the name that they were started under."""
        pids = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(): int(pid) for pid in pids}


def run(*command, env=None):
    """Runs a program to its end: its exit status and its lines."""
    with Program(*command, env=env) as program:
        return program.end(), program.lines


def succeed(*command):
    """Runs a program, which must succeed: its lines."""
    status, lines = run(*command)
    if status != 0:
        raise AssertionError(f"exit status {status}:\n" + "\n".join(lines))
    return lines


def loss_table(folder):
    """The rows of the loss curve that a program has written into the folder."""
    with open(folder / "loss.csv", newline="") as table:
        return list(csv.DictReader(table))


def is_gone(pid):
    """Returns whether the process has ended. A zombie counts as ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def eventually(what, condition):
    """Waits until the condition holds; fails after PATIENCE, and names what has not happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {PATIENCE} s, still not: {what}")
        time.sleep(0.01)


def kill_all(program):
    """Kills a program and its child processes."""
    processes = program.children()
    for pid in [program.process.pid, *processes.values()]:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(processes.values(), within=PATIENCE)


def wait_until_gone(pids, within):
    end = time.monotonic() + within
    while left := [pid for pid in pids if not is_gone(pid)]:
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"processes {left} still run after {within} s")
        time.sleep(0.01)


def free_address():
    """An unused host:port; no process that binds any free port of 127.0.0.1 gets it meanwhile (tests/support/loopback.h)."""
    pid = os.getpid()
    with socket.socket() as probe:
        probe.bind((f"127.{1 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}", 0))
        host, port = probe.getsockname()
        return f"{host}:{port}"


class FolderTest(unittest.TestCase):
    """A test with a folder, which is removed at its end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class _Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


class _Runner(unittest.TextTestRunner):
    resultclass = _Result


def main(**options):
    """unittest.main(), of which ctest hears what was skipped: by a line each, and by status 77 where that was all."""
    result = unittest.main(exit=False, testRunner=_Runner, **options).result
    for test, reason in result.skipped:
        print(f"skipped: {test.id().replace('__main__.', '')}: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped and not result.passed else 0)
