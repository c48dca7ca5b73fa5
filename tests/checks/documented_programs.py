#!/usr/bin/env python3
"""The C++ blocks with a main() in README and in docs/ are complete programs: they are compiled and run as printed.

  documented_programs.py extract FOLDER PAGE...   writes each such ```cpp block to FOLDER/PAGE_program_N.cc, and the
                                                  ```text block that directly follows it to ..._N.expected; prints the .cc
                                                  files as a CMake list. Fails if README has a block without `main`
  documented_programs.py run PROGRAM SOURCE [WEFT]  runs PROGRAM and compares its output with SOURCE's .expected, if that
                                                  exists. A first line `$ weft launch ... ./NAME` there is the command
                                                  that runs it, with WEFT as the program `weft`
"""
import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```([\w+]*)[^\n]*\n(.*?)^```[ ]*$", re.M | re.S)
MAIN = re.compile(r"\bint\s+main\s*\(")
SKIPPED = 77


def programs_of(text):
    """(line, program, expected output or None) of each C++ block."""
    blocks = list(BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None]):
        if block[1] not in ("cpp", "c++"):
            continue
        shown = following and following[1] == "text" and not text[block.end():following.start()].strip()
        yield text.count("\n", 0, block.start()) + 1, block[2], following[2] if shown else None


def command_of(expected, program, weft):
    """The command that runs a program, and the output that it is expected to have."""
    line, _, output = (expected or "").partition("\n")
    if not line.startswith("$ "):
        return [program], expected
    words = shlex.split(line[2:])
    return [weft if word == "weft" else program if word.startswith("./") else word for word in words], output


def write(path, text):
    if not path.exists() or path.read_text() != text:  # unchanged files are not compiled again
        path.write_text(text)


def extract(folder, pages):
    folder.mkdir(parents=True, exist_ok=True)
    sources = []
    for page in pages:
        programs = list(programs_of(page.read_text()))
        fragments = [line for line, program, _ in programs if not MAIN.search(program)]
        if fragments and page.name == "README.md":
            sys.exit(f"{page.name}:{fragments[0]}: a C++ block without main(): make it a complete program, or move it to docs/")
        complete = [(program, expected) for _, program, expected in programs if MAIN.search(program)]
        for number, (program, expected) in enumerate(complete, 1):
            source = folder / f"{page.stem.lower()}_program_{number}.cc"
            write(source, program)
            if expected is None:
                source.with_suffix(".expected").unlink(missing_ok=True)
            else:
                write(source.with_suffix(".expected"), expected)
            sources.append(str(source))
    print(";".join(sources))


def run(program, source, weft=""):
    file = source.with_suffix(".expected")
    command, expected = command_of(file.read_text() if file.exists() else None, program, weft)
    if "" in command:
        print(f"{source.name}: needs the program weft, which this build does not have")
        sys.exit(SKIPPED)
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        sys.exit(f"{source.name}: exit status {result.returncode}, expected 0")
    if expected is not None and expected.strip() != result.stdout.strip():
        sys.exit(f"{source.name}: the page shows this output:\n{expected}")


if __name__ == "__main__":
    if sys.argv[1] == "extract":
        extract(pathlib.Path(sys.argv[2]), [pathlib.Path(page) for page in sys.argv[3:]])
    else:
        run(sys.argv[2], pathlib.Path(sys.argv[3]), *sys.argv[4:])
