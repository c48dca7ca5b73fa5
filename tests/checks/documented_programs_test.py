#!/usr/bin/env python3
"""documented_programs.py finds each C++ block of a page and its output, refuses incomplete ones, and compares what a program prints."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

from documented_programs import SKIPPED, command_of, extract, no_namespaces, programs_of, run, run_commands

PROGRAM = "int main() {}\n"


def page(*blocks):
    return "\n\n".join(f"```{kind}\n{text}```" for kind, text in blocks)


class DocumentedPrograms(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def extract(self, text, name="README.md"):
        (self.folder / name).write_text(text)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            extract(self.folder / "out", [self.folder / name])
        return [pathlib.Path(source).name for source in printed.getvalue().strip().split(";")]

    def run_script(self, script, expected, weft=""):
        program = self.folder / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        (self.folder / "source.expected").write_text(expected)
        with contextlib.redirect_stdout(io.StringIO()):
            run(str(program), self.folder / "source.cc", weft)

    def test_a_program_and_its_output(self):
        text = page(("cpp", PROGRAM), ("text", "hello\n"), ("sh", "ls\n"), ("cpp", PROGRAM))
        self.assertEqual(list(programs_of(text)), [(1, PROGRAM, "hello\n"), (13, PROGRAM, None)])
        self.assertEqual(self.extract(text), ["readme_program_1.cc", "readme_program_2.cc"])

    def test_output_follows_its_program_directly(self):
        text = page(("cpp", PROGRAM)) + "\n\nIt prints:\n\n" + page(("text", "hello\n"))
        self.assertEqual(list(programs_of(text)), [(1, PROGRAM, None)])

    def test_a_block_without_main_is_a_fragment_of_a_page_and_refused_in_readme(self):
        text = page(("cpp", "agent.leave().get();\n"), ("cpp", PROGRAM))
        self.assertEqual(self.extract(text, "calls.md"), ["calls_program_1.cc"])
        with self.assertRaisesRegex(SystemExit, "README.md:5: .* without main"):
            self.extract(page(("cpp", PROGRAM), ("cpp", "agent.leave().get();\n")))

    def test_the_command_of_the_output_runs_the_program(self):
        self.assertEqual(command_of("$ weft launch -n 4 ./average\n[0] 3\n", "/p", "/w"),
                         (["/w", "launch", "-n", "4", "/p"], "[0] 3\n"))
        self.assertEqual(command_of("3\n", "/p", "/w"), (["/p"], "3\n"))
        self.assertEqual(command_of(None, "/p", "/w"), (["/p"], None))

    def test_output_and_exit_status_are_compared(self):
        self.run_script("echo hello", "hello\n")
        with self.assertRaisesRegex(SystemExit, "the page shows"):
            self.run_script("echo goodbye", "hello\n")
        with self.assertRaisesRegex(SystemExit, "exit status 3"):
            self.run_script("echo hello; exit 3", "hello\n")

    def test_without_the_launcher_a_launched_program_is_skipped(self):
        with self.assertRaises(SystemExit) as end:
            self.run_script("echo hello", "$ weft launch ./program\nhello\n")
        self.assertEqual(end.exception.code, SKIPPED)

    def test_the_commands_of_a_page_run_in_one_shell_and_a_separate_network(self):
        if no_namespaces(self.folder):
            self.skipTest("no network namespaces here")
        (self.folder / "greet").write_text("#!/bin/sh\necho hello\n")
        (self.folder / "greet").chmod(0o755)
        setup = ("sh", "ip link add weft-page type bridge\nname=weft-page\n")

        def commands(command, expected):
            (self.folder / "page.md").write_text(page(setup, ("sh", command), ("text", expected)))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                run_commands(self.folder / "page.md", "/bin/true", {"greet": self.folder / "greet"})

        commands("./greet $name > /dev/null\nip -o link show $name | grep -o $name\n", "weft-page\n")
        with self.assertRaisesRegex(SystemExit, "page.md:6: the page shows"):
            commands("./greet\n", "goodbye\n")
        with self.assertRaisesRegex(SystemExit, "page.md:6: exit status 1"):
            commands("./greet\nfalse\n", "hello\n")


if __name__ == "__main__":
    unittest.main()
