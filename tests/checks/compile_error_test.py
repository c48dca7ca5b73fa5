#!/usr/bin/env python3
"""compile_error_test.py COMPILE_COMMANDS.json SOURCE: a user's mistake gets one readable line from the compiler.

SOURCE holds a mistake and a comment `// expect: TEXT`. It must fail to compile, with exactly one `error:`, which contains
TEXT and is at most 240 characters long (clang, which goes on after a failed assertion and repeats its condition, may report
a second error, and the condition does not count); the lines that lead there from the user's call are at most 30. A copy of the file
in which lines marked `// mistake` are left out must compile, so that nothing else is wrong with it. With a comment
`// some compilers take it` the mistake is a compiler's, and the check is skipped where SOURCE compiles.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

LONGEST_ERROR = 240
MOST_LINES = 30


def compile_only(command, folder, source):
    arguments = command[:command.index("-o")] + ["-I", str(source.parent), "-fsyntax-only", "-fno-diagnostics-color",
                                                     "-fno-caret-diagnostics" if "clang" in command[0] else "-fno-diagnostics-show-caret", str(source)]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True)


def main():
    source = pathlib.Path(sys.argv[2])
    entry = next(e for e in json.loads(pathlib.Path(sys.argv[1]).read_text()) if e["file"] == str(source))
    command = shlex.split(entry["command"])
    while pathlib.Path(command[0]).name in ("cmake", "ccache", "-E", "env") or command[0].startswith(("-E", "CCACHE_")):
        command.pop(0)  # the launcher

    is_clang = "clang" in command[0]
    text = source.read_text()
    expected = re.search(r"// expect: (.*)", text)[1].strip()
    failures = []

    result = compile_only(command, entry["directory"], source)
    lines = result.stderr.splitlines()
    errors = [re.sub(r" due to requirement '.*?': ", ": ", line.split("error: ", 1)[1]) for line in lines if "error: " in line]
    if result.returncode == 0 and "// some compilers take it" in text:
        print(f"skipped: this compiler takes {source.name}")
        return 77
    if result.returncode == 0:
        failures.append("it compiles")
    if not 1 <= len(errors) <= (2 if is_clang else 1):
        failures.append(f"{len(errors)} errors instead of one")
    if expected not in "".join(errors[:1]):
        failures.append(f"the first error does not say '{expected}'")
    failures += [f"an error of {len(e)} characters" for e in errors if len(e) > LONGEST_ERROR]
    if len(lines) > MOST_LINES:
        failures.append(f"{len(lines)} lines of output")

    with tempfile.TemporaryDirectory() as folder:
        corrected = pathlib.Path(folder) / source.name
        corrected.write_text("".join(l for l in text.splitlines(True) if not l.rstrip().endswith("// mistake")))
        again = compile_only(command, entry["directory"], corrected)
    if again.returncode != 0:
        failures.append("it does not compile without the lines marked `// mistake` either:\n" + again.stderr)

    print(result.stderr)
    print("\n".join(f"{source.name}: {f}" for f in failures) or f"{source.name}: {errors[0]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
