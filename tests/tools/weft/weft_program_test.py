#!/usr/bin/env python3
"""weft_program_test.py WEFT AGENT: the program weft, run against a test agent in another process."""
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, FolderTest, Program, eventually, main  # noqa: E402


class Agent(Program):
    def __init__(self, *addresses):
        super().__init__(AGENT, *addresses)
        self.addresses = [self.wait_for(r"listens at (\S+)")[1] for one in addresses if not one.startswith("--")]


def weft(*arguments, given=None, cwd=None):
    """Runs weft: its exit status, its output, its errors."""
    ended = subprocess.run([WEFT, *arguments], input=given, stdin=subprocess.DEVNULL if given is None else None,
                           capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)
    return ended.returncode, ended.stdout, ended.stderr


class ProgramTest(unittest.TestCase):
    def printed(self, *arguments, **options):
        """What a command that succeeds prints."""
        status, output, errors = weft(*arguments, **options)
        self.assertEqual((status, errors), (0, ""), arguments)
        return output


class FileTest(FolderTest, ProgramTest):
    """Commands that ask no agent, in a folder for their files."""

    ROOT = pathlib.Path(__file__).resolve().parents[3]

    def check_refused(self, found, pattern, *arguments):
        status, output, errors = weft(*arguments, cwd=self.folder)
        self.assertEqual((status, output), (found, ""), errors)
        self.assertIn(pattern, errors)

    def check_shown(self, command, page, number):
        """The commands of a page print what it shows below them."""
        shown = re.findall(rf"(?m)^    \$ weft {command} (.*)\n((?:(?:    [^$].*)?\n)+)", page)
        self.assertEqual(len(shown), number)
        for arguments, output in shown:
            printed = self.printed(command, *shlex.split(arguments), cwd=self.folder)
            self.assertEqual(printed.rstrip(), textwrap.dedent(output).rstrip(), arguments)


class WeftTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.agent = cls.start("tcp://127.0.0.1:0", f"unix://{cls.folder.name}/agent")
        cls.address = cls.agent.addresses[0]

    @classmethod
    def start(cls, *addresses):
        agent = Agent(*addresses)
        cls.addClassCleanup(agent.__exit__)
        return agent

    def call(self, method, *arguments, given=None):
        return weft("call", self.address, method, *arguments, given=given)

    def result(self, method, *arguments, given=None):
        return self.printed("call", self.address, method, *arguments, given=given).rstrip("\n")

    def refused(self, status, pattern, *arguments, given=None):
        found, output, errors = weft(*arguments, given=given)
        self.assertEqual((found, output), (status, ""), errors)
        self.assertRegex(errors, pattern)
        self.assertNotIn("\x1b", errors)


class Listing(WeftTest):
    def test_all_methods_and_the_structs_that_they_need(self):
        output = self.printed("list", self.address)
        for line in (r"echo\.map +\(\{i32: str\}\) -> \{i32: str\}",
                     r"echo\.variant +\(<i64 \| f64 \| str>\) -> <i64 \| f64 \| str>",
                     r"echo\.tuple +\(i32, str, bool\) -> \(i32, str, bool\)",
                     r"echo\.nothing +\(\) -> void  idempotent",
                     r"echo\.order +\(Order\) -> Order",
                     r"created\.value +\(\) -> i32  on an object",
                     r"created\.new +\(str\) -> created",
                     r"weft\.health +\(\) -> Health  idempotent",
                     r"Order \{symbol: str, id: u64, path: \[Point\], notes: \{str: f32\?\}, color: enum\(i16\)\}",
                     r"Point \{x: f64, y: f64\}",
                     r"Tree \{value: i32, children: \[Tree\]\}"):
            self.assertRegex(output, f"(?m)^{line}$")
        self.assertEqual(output.count("Point {"), 1)

    def test_some_of_them(self):
        output = self.printed("list", self.address, "*.re[af]*")
        self.assertEqual([line.split()[0] for line in output.splitlines()], ["echo.real", "echo.reals", "ends.refuse"])
        self.assertEqual(weft("list", self.address, "nowhere"), (1, "", "weft: no method matches 'nowhere'\n"))

    def test_as_json(self):
        output = self.printed("list", self.address, "--json")
        methods = {one["name"]: one for one in json.loads(output)}
        self.assertEqual(methods["echo.tuple"], {"name": "echo.tuple", "signature": "(i32,str,bool)->(i32,str,bool)",
                                                 "parameters": ["i32", "str", "bool"], "result": "(i32,str,bool)",
                                                 "idempotent": False, "on_object": False})
        self.assertTrue(methods["created.value"]["on_object"])
        self.assertEqual(json.loads(weft("list", self.address, "--json", "nowhere")[1]), [])


class Calls(WeftTest):
    def test_every_kind_of_type(self):
        for method, value in (
                ("boolean", "true"), ("small", "-128"), ("large", "18446744073709551615"), ("real", "0.1"),
                ("real", '"NaN"'), ("real", "-5.0"), ("single", "0.1"), ("text", '"zürich \\u001b\\u0000"'),
                ("bytes", '{"base64": "AAH/"}'), ("bytes", '{"base64": "' + "QUFB" * 1000 + '"}'),
                ("reals", "[0.5, -1.0]"), ("reals", "[]"), ("map", '[[-1, "a"], [2, "b"]]'), ("map", "[]"),
                ("optional", "null"), ("optional", "7"), ("variant", '{"index": 1, "value": 2.5}'),
                ("order", '{"symbol": "X", "id": 9007199254740993, "path": [{"x": 1.0, "y": 2.5}], '
                          '"notes": {"a": null, "b": 0.1}, "color": -1}'),
                ("tree", '{"value": 1, "children": [{"value": 2, "children": []}, {"value": 3, "children": []}]}'),
                ("tensor", '{"dtype": "float32", "shape": [2, 2], "data": [[1.0, 0.1], ["NaN", -3.0]]}'),
                ("tensor", '{"dtype": "bfloat16", "shape": [1], "data": [0.1]}')):
            with self.subTest(method=method, value=value[:50]):
                self.assertEqual(self.result(f"echo.{method}", value), value)

    def test_other_ways_to_write_arguments(self):
        self.assertEqual(self.result("echo.tuple", "1", "two", "true"), '[1, "two", true]')
        self.assertEqual(self.result("echo.tuple", '[1, "two", true]'), '[1, "two", true]')
        self.assertEqual(self.result("echo.tuple", "-", given='[1, "two", true]\n'), '[1, "two", true]')
        self.assertEqual(self.result("echo.tuple", "1", "-", "true", given='"from\\nstdin"'), '[1, "from\\nstdin", true]')
        self.assertEqual(self.result("echo.reals", "[1, 2]"), "[1.0, 2.0]")
        self.assertEqual(self.result("echo.reals", "[[1, 2]]"), "[1.0, 2.0]")
        self.assertEqual(self.result("echo.small", "-5"), "-5")
        self.assertEqual(self.result("echo.text", "a word"), '"a word"')
        self.assertEqual(self.result("echo.map", '{"5": "x"}'), '[[5, "x"]]')
        self.assertEqual(self.result("echo.variant", '"x"'), '{"index": 2, "value": "x"}')
        self.assertEqual(self.result("echo.tensor", "[[1, 2], [3, 4]]"),
                         '{"dtype": "int64", "shape": [2, 2], "data": [[1, 2], [3, 4]]}')
        self.assertEqual(self.result("echo.nothing"), "null")
        self.assertEqual(self.result("echo.nothing", "[]"), "null")
        self.assertEqual(self.result("echo.optional"), "null")

    def test_missing_fields_take_the_agents_defaults(self):
        self.assertEqual(self.result("echo.order", "{}"),
                         '{"symbol": "NONE", "id": 0, "path": [], "notes": {}, "color": 7}')

    def test_results_go_into_other_calls(self):
        data = json.dumps({"dtype": "uint8", "shape": [40, 50], "data": [i % 256 for i in range(2000)]})
        printed = self.result("echo.tensor", "-", given=data)  # not elided: not a terminal
        self.assertEqual(self.result("echo.tensor", "-", given=printed), printed)
        self.assertEqual([v for row in json.loads(printed)["data"] for v in row], json.loads(data)["data"])

    def test_elision(self):
        self.assertEqual(self.result("echo.tensor", "[1, 2, 3]", "--max", "2"),
                         '{"dtype": "int64", "shape": [3], "data": [1, 2], "elided": 1}')
        self.assertEqual(self.result("echo.bytes", "QUFB", "--max", "1"), '{"base64": "QQ==", "elided": 2}')

    def test_one_line_or_several(self):
        order = '{"symbol": "X", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "notes": {"a": null}, "color": -1}'
        self.assertNotIn("\n", self.result("echo.order", order))
        pretty = self.result("echo.order", order, "--pretty")
        self.assertIn('\n  "path": [{"x": 1.0, "y": 2.0}, {"x": 3.0, "y": 4.0}],\n', pretty)
        self.assertEqual(json.loads(pretty)["color"], -1)

    def test_on_a_terminal(self):
        terminal, other = pty.openpty()
        process = subprocess.Popen([WEFT, "call", self.address, "echo.tensor", json.dumps([0.5] * 200)],
                                   stdin=subprocess.DEVNULL, stdout=other)
        os.close(other)
        output = b""
        while select.select([terminal], [], [], PATIENCE)[0]:
            try:
                piece = os.read(terminal, 10000)
            except OSError:  # the other end is closed
                break
            output += piece
        os.close(terminal)
        self.assertEqual(process.wait(), 0)
        printed = json.loads(output)
        self.assertEqual((len(printed["data"]), printed["elided"]), (100, 100))
        self.assertGreater(output.count(b"\n"), 5)
        self.assertLess(max(map(len, output.split(b"\r\n"))), 81)

    def test_again_and_again(self):
        status, output, errors = self.call("echo.small", "3", "--repeat", "5")
        self.assertEqual((status, output), (0, "3\n" * 5))
        self.assertRegex(errors, r"^5 calls in .* half of them within .* the slowest took .*\n$")

    def test_the_items_of_a_stream(self):
        self.assertEqual(self.result("flow.line", "3"),
                         '{"x": 0.0, "y": 1.0}\n{"x": 0.5, "y": 1.0}\n{"x": 1.0, "y": 1.0}')
        self.assertEqual(self.result("flow.line", "0"), "")
        self.assertEqual(self.result("flow.endless", "--items", "4"), "0\n1\n2\n3")
        status, output, errors = self.call("flow.broken")
        self.assertEqual((status, output), (1, "1\n"), errors)
        self.assertRegex(errors, r"flow\.broken.*the pipe broke")
        self.refused(2, "--items is for methods that return a stream; echo.small returns i8",
                     "call", self.address, "echo.small", "1", "--items", "2")

    def test_metadata(self):
        options = ("--metadata", "who=anna=b", "--metadata", "empty=")
        self.assertEqual(self.result("flow.metadata", "who", *options), '"anna=b"')
        self.assertEqual(self.result("flow.metadata", "empty", *options), '""')
        self.assertEqual(self.result("flow.metadata", "other", *options), '"none"')
        for wrong in (["who"], ["=x"], ["a=1", "--metadata", "a=2"]):
            self.refused(2, "--metadata", "call", self.address, "flow.metadata", "who", "--metadata", *wrong)

    def test_a_notification(self):
        self.assertEqual(self.call("ends.told", "once", "--notify"), (0, "", ""))
        self.agent.wait_for("^told once$")
        # The caller gets no error for a notification.
        self.assertEqual(self.call("ends.refuse", "x", "--notify"), (0, "", ""))

    def test_over_a_unix_socket(self):
        path = f"{self.folder.name}/agent"
        for address in (f"unix://{path}", path):
            self.assertEqual(weft("call", address, "echo.small", "1"), (0, "1\n", ""))

    def test_an_address_without_its_scheme(self):
        self.assertEqual(weft("call", self.address.removeprefix("tcp://"), "echo.small", "1"), (0, "1\n", ""))


class Errors(WeftTest):
    def test_of_handlers(self):
        self.refused(1, r"^weft: ends\.refuse failed on tested\\u001b\[1m: permission_denied: not \\u001b\[2Jyou\n$",
                     "call", self.address, "ends.refuse", "not \x1b[2Jyou")
        self.refused(1, r"^weft: ends\.crash failed on .*: handler_failed: std::out_of_range: beyond the end\n$",
                     "call", self.address, "ends.crash")
        self.refused(1, r"created\.new failed on .*: invalid_argument: a constructor can only be called by rref::create",
                     "call", self.address, "created.new", "x")

    def test_of_arguments(self):
        for pattern, *arguments in (
                (r"^weft: the argument: expected i8, found 128\n  echo\.small\(i8\) -> i8\n$", "echo.small", "128"),
                (r"argument 1: expected i32, found x, which is not JSON", "echo.tuple", "x", "y", "true"),
                (r"echo\.tuple takes 3 arguments, 1 is given", "echo.tuple", "1"),
                (r"echo\.nothing takes no arguments, 1 is given", "echo.nothing", "1"),
                (r'the argument\.path\[0\]\.x: expected f64, found "one"', "echo.order", '{"path": [{"x": "one"}]}'),
                (r'Order has no field "price": it has symbol, id, path, notes, color', "echo.order", '{"price": 1}'),
                (r"the argument: not JSON, at line 1, column 2", "echo.order", "{a}"),
                (r"names \"id\" twice", "echo.order", '{"id": 1, "id": 2}')):
            with self.subTest(arguments=arguments):
                self.refused(2, pattern, "call", self.address, *arguments)
        self.refused(2, "not JSON", "call", self.address, "echo.text", "-", given="word")
        self.refused(2, "is given twice", "call", self.address, "echo.tuple", "-", "-", "true", given="1")

    def test_of_names(self):
        self.refused(2, r"serves no method 'echo\.smal': did you mean echo\.small\?",
                     "call", self.address, "echo.smal", "1")
        self.refused(2, "a method of objects", "call", self.address, "created.value")

    def test_of_the_command_line(self):
        for arguments in ((), ("call",), ("call", self.address), ("list",), ("ring", self.address),
                          ("list", self.address, "--nothing"), ("list", self.address, "a", "b"),
                          ("call", self.address, "echo.small", "1", "--nothing"),
                          ("call", self.address, "echo.small", "1", "--timeout", "soon"),
                          ("call", self.address, "echo.small", "1", "--repeat", "0"),
                          ("call", "localhost", "echo.small", "1"), ("call", "localhost:0", "x"),
                          ("call", "http://localhost:1", "echo.small"), ("list", "inproc://x"),
                          ("ping", self.address, "--count", "0")):
            with self.subTest(arguments=arguments):
                self.refused(2, ".", *arguments)
        for arguments in (("--help",), ("call", "--help"), ("--version",)):
            output = self.printed(*arguments)
            self.assertRegex(output, "ARGUMENT" if "call" in arguments else r"\d\.\d|ping")

    def test_of_the_way(self):
        with socket.socket() as taken:  # bound, but no process listens
            taken.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{taken.getsockname()[1]}"
            for command in (["list"], ["ping"], ["health"], ["call"]):
                arguments = ["x"] if command == ["call"] else []
                self.refused(3, "^weft: unavailable: .*refused", *command, dead, *arguments)
        self.refused(3, "^weft: unavailable: ", "list", f"{self.folder.name}/nothing")

    def test_another_program_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            process = subprocess.Popen([WEFT, "list", address, "--timeout", "50s"], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            server.settimeout(PATIENCE)
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                _, errors = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 3, errors)

    def test_no_agent_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and sends nothing
            address = f"127.0.0.1:{server.getsockname()[1]}"
            self.refused(3, "^weft: deadline_exceeded: ", "list", address, "--timeout", "200ms")

    def test_not_in_time(self):
        self.refused(3, r"^weft: deadline_exceeded: .*ends\.hang.*deadline", "call", self.address, "ends.hang", "--timeout", "2s")

    def test_an_agent_that_dies_meanwhile(self):
        agent = self.start("tcp://127.0.0.1:0")
        self.refused(3, r"^weft: peer_lost: .*ends\.die.*may have run", "call", agent.addresses[0], "ends.die")
        self.assertEqual(agent.end(), 7)
        with Program(WEFT, "call", self.address, "ends.hang", "--timeout", "0") as caller:
            self.agent.wait_for("hanging")
            caller.signal(signal.SIGINT)
            self.assertEqual(caller.end(), -signal.SIGINT)

    def test_an_output_that_is_full(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            ended = subprocess.run([WEFT, "list", self.address], stdout=full, stderr=subprocess.PIPE, text=True,
                                   timeout=PATIENCE, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (1, "weft: the output cannot be written\n"))


class HealthAndPing(WeftTest):
    def test_ping(self):
        output = self.printed("ping", self.address, "--count", "2", "--interval", "1ms")
        self.assertRegex(output, r"\Atested\\u001b\[1m at tcp://\S+ \(incarnation [0-9a-f]{16}\), connected in .* ms\n"
                                 r"1: \S+ ms\n2: \S+ ms\nleast \S+ ms, mean \S+ ms, most \S+ ms\n\Z")
        output = self.printed("ping", self.address, "-c", "3", "-i", "0", "--json")
        self.assertEqual(len(json.loads(output)["round_trips_us"]), 3)

    def test_health(self):
        output = self.printed("health", self.address)
        self.assertRegex(output, r"\Aserving\n  agent +tested\\u001b\[1m \(incarnation [0-9a-f]{16}\)\n  weft +\d+\.\d+\.\d+\n"
                                 r"  uptime +\S.*\n  calls +\d+ served now, \d+ made and in flight\n\Z")
        status, output, _ = weft("health", self.address, "--json")
        self.assertEqual((status, json.loads(output)["status"]), (0, "serving"))
        self.assertEqual(json.loads(self.result("weft.health"))["status"], "serving")

    def test_an_agent_that_drains(self):
        agent = self.start("tcp://127.0.0.1:0")
        address = agent.addresses[0]
        with Program(WEFT, "call", address, "ends.hang", "--timeout", "0"):
            agent.wait_for("hanging")
            self.assertEqual(weft("call", address, "ends.drain")[0], 0)
            eventually("the agent drains", lambda: weft("health", address)[0] != 0)
            self.assertEqual(weft("health", address), (1, "draining\n", ""))
            self.assertEqual(weft("health", address, "--json"), (1, '{"status": "draining"}\n', ""))
            self.refused(3, "^weft: shut_down: ", "call", address, "echo.small", "1")


class Looking(WeftTest):
    def test_top(self):
        self.assertEqual(self.result("echo.small", "1"), "1")
        output = self.printed("top", self.address, "--once", "-i", "10ms")
        self.assertRegex(output, r"\Atested\\u001b\[1m  up .* connections, ")
        self.assertRegex(output, r"(?m)^ +\d+\.\d +\d+\.\d +\d+ +\d+  echo\.small$")
        status, output, _ = weft("top", self.address, "-c", "2", "-i", "10ms")
        self.assertEqual((status, output.count("METHOD")), (0, 2))
        self.assertNotIn("\x1b", output)

    def test_what_hangs(self):
        agent = self.start("tcp://127.0.0.1:0")
        address = agent.addresses[0]
        self.assertEqual(weft("hang", address, "--older", "0"), (0, "no call has been in flight for 0.000 ms\n", ""))
        with Program(WEFT, "call", address, "ends.hang", "--timeout", "0"):
            agent.wait_for("hanging")
            end = time.monotonic() + PATIENCE
            while True:  # the handler reports this before it suspends
                status, output, errors = weft("hang", address, self.address, "--older", "0")
                if output.endswith(", suspended\n") or time.monotonic() > end:
                    break
            self.assertEqual((status, errors), (0, ""))
            self.assertRegex(output, r"\Aweft-\S+#\d+ ends\.hang on tested\\u001b\[1m, .*, suspended\n\Z")
            output = self.printed("hang", address, "--older", "0", "--json")
            graph = json.loads(output)
            self.assertEqual(graph["cycles"], [])
            self.assertEqual([call["waits_for"] for call in graph["calls"]], [[]])
            self.assertIn("ends.hang on tested", graph["calls"][0]["text"])
            nobody = "tcp://127.0.0.1:1"
            status, again, errors = weft("hang", address, nobody, "--older", "0")
            self.assertEqual(status, 3)
            self.assertIn("ends.hang", again)  # the data of the others
            self.assertNotEqual(errors, "")

    def test_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            traced = self.start("--traced", "tcp://127.0.0.1:0")
            address = traced.addresses[0]
            for _ in range(3):
                self.assertEqual(weft("call", address, "echo.small", "1")[0], 0)
            path = os.path.join(folder, "trace.json")
            status, output, errors = weft("trace", address, "-o", path)
            self.assertEqual((status, output), (0, ""))
            self.assertRegex(errors, r"\Atested\\u001b\[1m: 3 spans, 0 dropped; its clock is known to .*\n\Z")
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            spans = [event for event in events if event["ph"] == "X"]
            self.assertEqual([span["name"] for span in spans], ["echo.small"] * 3)
            self.assertEqual(len({span["args"]["trace"] for span in spans}), 3)
            self.refused(2, "has no tracer", "trace", self.address)


class Flights(FileTest):
    def flight(self, *arguments):
        return weft("flight", str(self.folder), *arguments)

    def dump(self, rank, begun, state, members=("a", "b"), **fields):
        entries = [{"number": i, "kind": "collective", "state": state if i == begun - 1 else "done", "sequence": i,
                    "text": "barrier()", "site": "train.cc:12", "bytes": 0, "begun": 10**9, "moved": 0, "ended": 0}
                   for i in range(begun)]
        dump = {"format": "weft.flight", "version": 1, "group": "world", "origin": "0" * 16, "number": 1, "rank": rank,
                "members": members, "host": "h", "pid": 7, "error": "", "taken": 3 * 10**9, "begun": begun, "begun_values": 0,
                "dropped": 0,
                "entries": entries, **fields}
        (self.folder / f"world.0.rank{rank}.json").write_text(json.dumps(dump), encoding="utf-8")

    def test_all_is_well(self):
        for rank in (0, 1):
            self.dump(rank, 2, "done")
        self.assertEqual(self.flight(), (0, "group 'world': 2 ranks; 2 collectives begun\n"
                                            "  all ranks called the same operations, and none is in flight\n", ""))
        status, output, errors = self.flight("--json")
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(json.loads(output)["findings"], [])

    def test_one_is_missing(self):
        self.dump(0, 3, "begun", error="in \x1b[2Jvain")
        self.dump(1, 2, "done")
        status, output, errors = self.flight()
        self.assertEqual((status, errors), (1, ""))
        self.assertEqual(output.splitlines()[:4],
                         ["group 'world': 2 ranks; 2 to 3 collectives begun",
                          "  ended with: in \\u001b[2Jvain",
                          "  #2 barrier(): rank 1 (b) has not begun it",
                          "    rank 0 (a): in #2 barrier() at train.cc:12, for 2.0 s"])
        status, output, errors = self.flight("--json")
        self.assertEqual((status, errors, output.count("\n")), (1, "", 1))
        found = json.loads(output)
        self.assertEqual([group["group"] for group in found["groups"]], ["world"])
        self.assertEqual(len(found["findings"]), 1)
        finding = found["findings"][0]
        self.assertEqual((finding["kind"], finding["group"], finding["sequence"], finding["ranks"], finding["members"]),
                         ("missing", "world", 2, [1], ["b"]))

    def test_a_damaged_dump_is_left_out(self):
        self.dump(0, 3, "begun")
        (self.folder / "world.0.rank1.json").write_text('{"format"', encoding="utf-8")
        status, output, errors = self.flight()
        self.assertEqual(status, 1)
        self.assertIn("rank 1 (b) has left no dump", output)
        self.assertRegex(errors, r"^weft: left out world\.0\.rank1\.json: .* cut off\n$")

    def test_no_dumps(self):
        for arguments in ((), (str(self.folder),), (f"{self.folder}/nowhere",), (str(self.folder), "--fast")):
            status, output, errors = weft("flight", *arguments)
            self.assertEqual((status, output), (2, ""))
            self.assertNotEqual(errors, "")


class ScheduleTest(FileTest):
    def test_simulates_and_draws(self):
        status, output, errors = weft("schedule", "--type", "zb-v", "--stages", "2", "--microbatches", "3", "--svg",
                                      str(self.folder / "out.svg"))
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(output, """\
zb-v: 2 ranks, 4 stages, 3 micro-batches

rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
rank 1 |     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

step 19, bubble 5.263 %; without a barrier between steps: period 18, bubble 0 %
12 messages in one order

rank      busy      idle  activations  received
   0        18         0            4         2
   1        18         1            4         3
""")
        picture = (self.folder / "out.svg").read_text()
        self.assertIn("zb-v: 2 ranks, 4 stages, 3 micro-batches, bubble 5.263 %", picture)
        xml.etree.ElementTree.fromstring(picture)

    def test_saves_and_loads(self):
        plan, again = str(self.folder / "plan.csv"), str(self.folder / "again.csv")
        saved = weft("schedule", "--type", "1f1b", "--stages", "2", "--microbatches", "2", "--save", plan)
        self.assertEqual(pathlib.Path(plan).read_text(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        loaded = weft("schedule", "--load", plan, "--messages", "--save", again)
        self.assertEqual((loaded[0], loaded[1].partition(":")[2]), (saved[0], saved[1].partition(":")[2]))
        self.assertTrue(pathlib.Path(again).read_text().startswith("0F0,0SEND_F0,"))

    def test_costs(self):
        status, output, errors = weft("schedule", "--type", "gpipe", "--stages", "2", "--microbatches", "1", "--cost",
                                      "forward=2,5", "--cost", "link=10")
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("step 31,", output)  # 2 + 10 + 5 + 2 + 10 + 2

    def test_versions(self):
        status, output, errors = weft("schedule", "--type", "pipedream", "--stages", "3", "--replicas", "2,1",
                                      "--microbatches", "4", "--vertical-sync", "--recompute", "always", "--waits", "1")
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("pipedream: 3 ranks, 2 stages, 4 micro-batches", output)

    def test_refuses(self):
        plan = self.folder / "plan.csv"
        plan.write_text("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")
        for pattern, *arguments in (("expected --type or --load",),
                                    ("unknown schedule 'zb-w', expected one of gpipe, 1f1b", "--type", "zb-w"),
                                    ("cannot read", "--load", "/nowhere"),
                                    ("the schedule deadlocks: ", "--load", str(plan)),
                                    ("expected at least 1 of each", "--type", "1f1b", "--stages", "0"),
                                    ("3 values, expected 1 or 4", "--type", "1f1b", "--cost", "forward=1,2,3"),
                                    ("expected NAME=NUMBER", "--type", "1f1b", "--cost", "forward=fast"),
                                    ("expected one value of ", "--type", "1f1b", "--cost", "speed=1")):
            self.check_refused(2, pattern, "schedule", *arguments)

    def test_drew_the_pictures_of_the_documentation(self):
        commands = re.findall(r"(?m)^    weft (schedule .*--svg) (docs/images/\S+)$", (self.ROOT / "docs/pipelines.md").read_text())
        self.assertEqual(len(commands), 4)
        for arguments, picture in commands:
            drawn = self.folder / "drawn.svg"
            self.printed(*shlex.split(arguments), str(drawn))
            self.assertEqual(drawn.read_text(), (self.ROOT / picture).read_text(), f"draw {picture} again: docs/pipelines.md")

    def test_lists_the_types(self):
        output = self.printed("schedule", "--list")
        self.assertEqual(len(output.splitlines()), 14)
        self.assertRegex(output, r"(?m)^zb-v +zero bubble, two chunks in a V")


class PartitionTest(FileTest):
    """The profile, the commands and their outputs in docs/pipelines.md, "Partition"."""

    def setUp(self):
        super().setUp()
        self.page = (self.ROOT / "docs/pipelines.md").read_text()
        self.profile = "".join(f"{line}\n" for line in re.findall(r"(?m)^    (.* -- .*)$", self.page))
        (self.folder / "model.txt").write_text(self.profile)

    def weft(self, *arguments):
        return weft("partition", *arguments, cwd=self.folder)

    def test_prints_what_the_documentation_shows(self):
        self.check_shown("partition", self.page, 2)

    def test_drew_the_picture_of_the_documentation(self):
        (arguments, picture), = re.findall(r"(?m)^    weft partition (.*--svg) (docs/images/\S+)$", self.page)
        self.printed("partition", *shlex.split(arguments), "drawn.svg", cwd=self.folder)
        drawn = (self.folder / "drawn.svg").read_text()
        self.assertEqual(drawn, (self.ROOT / picture).read_text(), f"draw {picture} again: docs/pipelines.md")
        xml.etree.ElementTree.fromstring(drawn)

    def test_writes_the_stages_of_the_layers(self):
        self.printed("partition", "model.txt", "-n", "4", "-o", "cut.txt", cwd=self.folder)
        lines = (self.folder / "cut.txt").read_text().splitlines()
        stages = [line[-1] for line in lines if "stage_id=" in line]
        self.assertEqual(stages, list("00000111"))
        self.assertEqual([line for line in lines if line.startswith("\t")],
                         [line for line in self.profile.splitlines() if line.startswith("\t")])

    def test_the_ways_to_cut(self):
        for stages, *arguments in ((2, "--balance", "time", "--stages", "2"), (3, "--balance", "size", "-n", "3"),
                                   (3, "--balance", "exact", "--stages", "3"), (4, "--stages", "4"),
                                   (3, "--count", "2,3,3"), (3, "--cut", "conv2", "--cut", "Concat(1)"),
                                   (4, "-n", "2,2", "-b", "1e10,1e9", "--straight"),
                                   (4, "-n", "4", "--straight", "--compressed-activations", "2"),
                                   (4, "-n", "4", "--straight", "--memory", "1e9", "--cuts", "in-order")):
            output = self.printed("partition", "model.txt", *arguments, cwd=self.folder)
            self.assertRegex(output, rf"^model\.txt: 8 layers, {stages} stages, {stages} workers\n", arguments)
            self.assertRegex(output, r"(?m)^bottleneck 0\.\d+ s$")

    def test_reports_that_it_did_not_try_all_cuts(self):
        status, output, errors = self.weft("model.txt", "-n", "2", "--max-cuts", "8")
        self.assertEqual(status, 0)
        self.assertIn("too many cuts to try all of them: only cuts of the topological order are tried", errors)

    def test_refuses(self):
        (self.folder / "broken.txt").write_text(self.profile.replace("forward_compute_time=16.000", "16.000"))
        for found, pattern, *arguments in (
                (2, "cannot read nowhere.txt", "nowhere.txt", "-n", "2"),
                (2, "broken.txt, line 2: found '16.000', expected 'forward_compute_time=NUMBER'", "broken.txt", "-n", "2"),
                (2, "expected -n WORKERS, or one of", "model.txt"),
                (2, "-b has 1 bandwidths, expected 2", "model.txt", "-n", "2,2", "-b", "1e9"),
                (2, "expected --stages N or -n N with --balance", "model.txt", "--balance", "time"),
                (2, "the profile has no layer 'pool', expected a name such as 'image'", "model.txt", "--cut", "pool"),
                (2, "--workers excludes --count", "model.txt", "-n", "2", "--count", "4,4"),
                (2, "--objective", "model.txt", "-n", "2", "--objective", "speed"),
                (1, "no partition of 8 layers uses exactly 9 workers, one a stage", "model.txt", "-n", "9", "--straight"),
                (1, "fits into 1000000 bytes of memory each: allow more", "model.txt", "-n", "2", "--memory", "1e6")):
            self.check_refused(found, pattern, "partition", *arguments)


class PlanTest(FileTest):
    """The commands and their outputs in docs/parallelism.md, "Choosing a factorization", for the figures of the table there."""

    def setUp(self):
        super().setUp()
        self.page = (self.ROOT / "docs/parallelism.md").read_text()
        layers = [(name, *figures) for names, *figures in self.rows() for name in self.layer_names(names)]
        self.assertEqual(len(layers), 34)
        for file, activation in (("gpt.txt", 3), ("kept.txt", 4)):
            lines = [f"{layer[0]} -- Layer -- forward_compute_time={layer[1]}, backward_compute_time={layer[2]}, "
                     f"activation_size={layer[activation]}, parameter_size={layer[5]}" for layer in layers]
            lines += [f"\t{one[0]} -- {next[0]}" for one, next in zip(layers, layers[1:])]
            (self.folder / file).write_text("\n".join(lines) + "\n")

    def rows(self):
        """Of the table: names, milliseconds forward and backward, bytes of output, kept and parameters."""
        row = r"(?m)^\| (`.*?) \| (\S+) ms \| (\S+) ms \| (\d+) MiB \| (\d+) MiB \| (\d+) MiB \|$"
        for names, *figures in re.findall(row, self.page):
            yield (names, *figures[:2], *(int(mebibytes) << 20 for mebibytes in figures[2:]))

    @staticmethod
    def layer_names(text):
        names = re.findall("`(.*?)`", text)
        if len(names) == 1:
            return names
        (stem, first), (_, last) = (re.fullmatch(r"(\D+)(\d+)", name).groups() for name in names)
        return [f"{stem}{number}" for number in range(int(first), int(last) + 1)]

    def weft(self, *arguments):
        return weft("plan", *arguments, cwd=self.folder)

    def json(self, *arguments):
        output = self.printed("plan", "gpt.txt", *arguments, "--json", cwd=self.folder)
        return json.loads(output)

    def test_prints_what_the_documentation_shows(self):
        self.check_shown("plan", self.page, 1)

    def test_gives_json(self):
        found = self.json("--hosts", "1x4", "--data", "1", "--pipeline", "4", "--schedule", "1f1b", "--global-batch", "8",
                          "--latency", "0s", "--bandwidth", "1e15")
        (plan,) = found["plans"]
        self.assertEqual((plan["data"], plan["pipeline"], plan["tensor"]), (1, 4, 1))
        self.assertEqual(plan["mesh"], ["data", "pipeline", "tensor"])
        self.assertEqual((plan["schedule"], plan["microbatches"], plan["microbatch"], plan["balance"]), ("1f1b", 8, 1, "time"))
        self.assertEqual(len(plan["cut"]), 3)
        self.assertEqual(len(plan["memory"]), 4)
        self.assertAlmostEqual(plan["bubble"], 3 / 11, delta=0.05)  # (p - 1) / (m + p - 1), if stages were equal
        self.assertIn("./train --data 1 --pipeline 4 --tensor 1 --schedule 1f1b --microbatches 8 --batch-size 8 --cut block",
                      plan["command"])
        self.assertEqual((found["impossible"], found["global_batch"]), ([], 8))

    def test_one_rank_takes_the_sum_of_the_profile(self):
        (plan,) = self.json("--hosts", "1", "--global-batch", "3")["plans"]
        profile = (self.folder / "gpt.txt").read_text()
        total = sum(float(time) for time in re.findall(r"_compute_time=([\d.]+)", profile))
        self.assertAlmostEqual(plan["step_seconds"], 3 * total / 1000, places=9)
        self.assertEqual(plan["command"],
                         "weft launch -n 1 ./train --data 1 --pipeline 1 --tensor 1 --microbatches 3 --batch-size 3")

    def test_the_options(self):
        grid = ("--hosts", "2x4", "--data", "2", "--pipeline", "2", "--tensor", "2", "--tensor-layers", "block*")
        (whole,) = self.json(*grid, "--schedule", "zb-h1")["plans"]
        for slower in (("--bandwidth", "1GB"), ("--host-bandwidth", "1MB"), ("--host-latency", "1s"), ("--latency", "1s"),
                       ("--reductions", "20"), ("--split-backward", "3"), ("--cores", "1")):
            (plan,) = self.json(*grid, "--schedule", "zb-h1", *slower)["plans"]
            self.assertGreater(plan["step_seconds"], 1.01 * whole["step_seconds"], slower)
        (plan,) = self.json(*grid, "--schedule", "1f1b")["plans"]
        self.assertGreater(plan["step_seconds"], whole["step_seconds"])
        (plan,) = self.json(*grid, "--schedule", "zb-h1", "--optimizer-bytes", "6")["plans"]
        self.assertEqual(plan["memory"][0]["optimizer"], 3 * whole["memory"][0]["optimizer"])
        (plan,) = self.json(*grid, "--schedule", "zb-h1", "--kept", "kept.txt")["plans"]
        self.assertGreater(plan["memory"][0]["activations"], 5 * whole["memory"][0]["activations"])
        (plan,) = self.json(*grid, "--schedule", "interleaved", "--max-chunks", "2")["plans"]
        self.assertEqual(plan["chunks"], 2)
        some = self.json(*grid, "--microbatch", "2", "--try-microbatch", "1,2", "--plans", "100", "--every-schedule")
        self.assertEqual({(plan["microbatch"], plan["microbatches"]) for plan in some["plans"]}, {(1, 32), (2, 16)})
        status, output, errors = self.weft("gpt.txt", *grid, "--heads", "5")
        self.assertEqual(status, 1)
        self.assertIn("the 5 units of a split layer do not divide over 2 tensor ranks", output)

    def test_refuses(self):
        (self.folder / "few.txt").write_text("block1 -- Layer -- forward_compute_time=1, backward_compute_time=1, "
                                             "activation_size=1, parameter_size=1\n")
        for found, pattern, *arguments in (
                (2, "cannot read nowhere.txt", "nowhere.txt", "--hosts", "2x2"),
                (2, "--hosts is required", "gpt.txt"),
                (2, "--hosts is '4by8', expected HOSTSxRANKS, such as 4x8", "gpt.txt", "--hosts", "4by8"),
                (2, "--hosts is '0x8', expected HOSTSxRANKS", "gpt.txt", "--hosts", "0x8"),
                (2, "'40 apples' is not a number of bytes", "gpt.txt", "--hosts", "2x2", "--memory", "40 apples"),
                (2, "no layer of gpt.txt matches --tensor-layers mlp", "gpt.txt", "--hosts", "2x2", "--tensor-layers", "mlp"),
                (2, "few.txt has no layer 'embedding', expected those of gpt.txt", "gpt.txt", "--hosts", "2", "--kept", "few.txt"),
                (2, "unknown schedule 'zb-w', expected one of 1f1b", "gpt.txt", "--hosts", "2", "--schedule", "zb-w"),
                (2, "expected sizes whose product can be the machine's 4 ranks", "gpt.txt", "--hosts", "2x2", "--data", "3")):
            self.check_refused(found, pattern, "plan", *arguments)

    def test_reports_that_nothing_is_possible(self):
        status, output, errors = self.weft("gpt.txt", "--hosts", "2x2", "--memory", "1GiB")
        self.assertEqual((status, errors), (1, "weft: no factorization is possible\n"))
        self.assertRegex(output, r"(?m)^ +4 +1 +1 +memory: a rank needs [\d.]+ GiB for parameters")
        self.assertRegex(output, r"(?m)^ +1 +1 +4 +no layer is split over tensor ranks$")


if __name__ == "__main__":
    WEFT, AGENT = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    main()
