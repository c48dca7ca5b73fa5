#!/usr/bin/env python3
"""thread_safety.py passes on what a source needs, groups the sources, and reports each finding once. With a stand-in for clang."""
import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest
import unittest.mock

from sources import ROOT
from thread_safety import arguments_for_clang, groups, main

COMMAND = "g++ -O2 -I/include -isystem /torch -DNAME=1 -std=c++20 -Wall -o file.o -c file.cc"
ARGUMENTS = ["-I/include", "-isystem", "/torch", "-DNAME=1", "-std=c++20"]


def entry(source, command=COMMAND):
    return {"file": str(ROOT / source), "command": command}


class Grouping(unittest.TestCase):
    def test_keeps_paths_definitions_and_standard(self):
        self.assertEqual(arguments_for_clang(COMMAND), ARGUMENTS)

    def test_groups_by_folder_and_arguments(self):
        found, left_out = groups([entry("rpc/core/error.cc"), entry("rpc/core/log.cc"), entry("rpc/core/log.cc"),
                                  entry("rpc/core/loop.cc", "g++ -c loop.cc"), entry("rpc/wire/value.cc")], set())
        self.assertEqual(found, {("rpc/core", tuple(ARGUMENTS)): ["rpc/core/error.cc", "rpc/core/log.cc"],
                                 ("rpc/core", ()): ["rpc/core/loop.cc"],
                                 ("rpc/wire", tuple(ARGUMENTS)): ["rpc/wire/value.cc"]})
        self.assertIn("rpc/core/future.cc", left_out)
        self.assertNotIn("rpc/core/asio.cc", left_out)

    def test_leaves_out_other_folders_and_sources_that_are_not_ours(self):
        found, _ = groups([entry("rpc/core/error.cc"), entry("rpc/wire/value.cc"), entry("rpc/core/asio.cc"),
                           entry("tests/rpc/core/error_test.cc"), {"file": "/elsewhere/file.cc", "command": COMMAND}], {"rpc/core"})
        self.assertEqual(list(found.values()), [["rpc/core/error.cc"]])


class Findings(unittest.TestCase):
    def run_with(self, clang):
        """The status and the output of main() on two folders, with a script in place of clang."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "compile_commands.json").write_text(json.dumps([entry("rpc/core/error.cc"), entry("rpc/wire/value.cc")]))
            compiler = build / "clang"
            compiler.write_text(f"#!/bin/sh\n{clang}\n")
            compiler.chmod(0o755)
            with contextlib.redirect_stdout(io.StringIO()) as output, unittest.mock.patch.dict(os.environ, CXX=str(compiler)):
                return main(folder), output.getvalue()

    def test_none(self):
        status, output = self.run_with("exit 0")
        self.assertEqual(status, 0)
        self.assertIn("2 sources in 2 groups analysed, 0 mistakes", output)

    def test_one_in_a_header_counts_once(self):
        status, output = self.run_with(
            'case "$*" in *c++-header*) ;; *) echo "rpc/core/log.h:1:2: warning: reading without the mutex" >&2 ;; esac')
        self.assertEqual(status, 1)
        self.assertEqual(output.count("reading without the mutex"), 1)
        self.assertIn("1 mistakes", output)

    def test_a_source_or_headers_that_do_not_compile(self):
        for clang in ('case "$*" in *c++-header*) ;; *) exit 1 ;; esac', "exit 1"):
            self.assertEqual(self.run_with(clang)[0], 1)


if __name__ == "__main__":
    unittest.main()
