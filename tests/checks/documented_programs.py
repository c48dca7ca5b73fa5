#!/usr/bin/env python3
"""The C++ blocks with a main() in README, in docs/ and in docs/tutorials/ are complete programs: they are compiled and run as printed.

  documented_programs.py extract FOLDER PAGE...   writes each such ```cpp block to FOLDER/PAGE_program_N.cc, and the
                                                  ```text block that directly follows it to ..._N.expected; prints the .cc
                                                  files as a CMake list. Fails if README has a block without `main`
  documented_programs.py run PROGRAM SOURCE [WEFT]  runs PROGRAM and compares its output with SOURCE's .expected, if that
                                                  exists. A first line `$ weft launch ... ./NAME` there is the command
                                                  that runs it, with WEFT as the program `weft`
  documented_programs.py commands PAGE WEFT NAME=PROGRAM...  runs the ```sh blocks of a page one after the other in a shell
                                                  that has its own network and mounts, in a folder with the programs, and
                                                  compares their output with the ```text blocks that directly follow them
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```([\w+]*)[^\n]*\n(.*?)^```[ ]*$", re.M | re.S)
MAIN = re.compile(r"\bint\s+main\s*\(")
SKIPPED = 77
OWN_NAMESPACES = ("unshare", "--net", "--mount-proc", "--fork", "--pid", "--kill-child")


def blocks_of(text, kinds):
    """(line, text, expected output or None) of each block of these kinds."""
    blocks = list(BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None]):
        if block[1] not in kinds:
            continue
        shown = following and following[1] == "text" and not text[block.end():following.start()].strip()
        yield text.count("\n", 0, block.start()) + 1, block[2], following[2] if shown else None


def programs_of(text):
    return blocks_of(text, ("cpp", "c++"))


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


def shell(script, folder, path=""):
    """Runs a script in separate namespaces. Its processes end with it."""
    return subprocess.run([*OWN_NAMESPACES, "bash", "-e", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"})


def no_namespaces(folder):
    """Why there are no namespaces here; empty where there are."""
    if not all(shutil.which(program) for program in ("ip", "unshare")):
        return "`ip` or `unshare` is not installed"
    tried = shell("ip link add bridge type bridge; mount -t tmpfs none /run", folder)
    return tried.stderr.strip() if tried.returncode != 0 else ""


def run_commands(page, weft, programs):
    """programs: {name: path}"""
    with tempfile.TemporaryDirectory() as folder:
        if problem := no_namespaces(folder):
            print(f"{page.name}: skipped, no network namespaces: {problem}")
            sys.exit(SKIPPED)
        for name, path in programs.items():
            (pathlib.Path(folder) / name).symlink_to(path)
        blocks = list(blocks_of(page.read_text(), ("sh",)))
        end = "--- end of the block ---"
        result = shell("\n".join(f"{text}echo '{end}'" for _, text, _ in blocks), folder, pathlib.Path(weft).parent)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    outputs = result.stdout.split(end)[:-1]
    if result.returncode != 0 or len(outputs) != len(blocks):
        sys.exit(f"{page.name}:{blocks[len(outputs)][0]}: exit status {result.returncode}, expected 0")
    for (line, _, expected), output in zip(blocks, outputs):
        if expected is not None and expected.strip() != output.strip():
            sys.exit(f"{page.name}:{line}: the page shows this output:\n{expected}")


if __name__ == "__main__":
    if sys.argv[1] == "extract":
        extract(pathlib.Path(sys.argv[2]), [pathlib.Path(page) for page in sys.argv[3:]])
    elif sys.argv[1] == "commands":
        run_commands(pathlib.Path(sys.argv[2]), sys.argv[3], dict(argument.split("=", 1) for argument in sys.argv[4:]))
    else:
        run(sys.argv[2], pathlib.Path(sys.argv[3]), *sys.argv[4:])
