#!/usr/bin/env python3
"""README's programs are compiled and run as they stand.

  readme_programs.py extract README.md FOLDER   writes each ```cpp block with a `main` to FOLDER/readme_program_N.cc, and,
                                                where a ```text block follows it directly, that to ..._N.expected;
                                                prints the .cc files as a CMake list
  readme_programs.py run PROGRAM SOURCE         runs PROGRAM; its output must be what SOURCE's .expected says, if there is one
"""
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.M | re.S)


def write(path, text):
    if not path.exists() or path.read_text() != text:  # unchanged files are not compiled again
        path.write_text(text)


def extract(readme, folder):
    folder.mkdir(parents=True, exist_ok=True)
    text = readme.read_text()
    blocks = list(BLOCK.finditer(text))
    programs = []
    for block, following in zip(blocks, [*blocks[1:], None]):
        if block[1] not in ("cpp", "c++") or not re.search(r"\bint\s+main\s*\(", block[2]):
            continue
        source = folder / f"readme_program_{len(programs) + 1}.cc"
        expected = source.with_suffix(".expected")
        write(source, block[2])
        if following and following[1] == "text" and not text[block.end():following.start()].strip():
            write(expected, following[2])
        else:
            expected.unlink(missing_ok=True)
        programs.append(str(source))
    print(";".join(programs))


def run(program, source):
    result = subprocess.run([program], capture_output=True, text=True, timeout=60)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        sys.exit(f"{source.name} ended with {result.returncode}")
    expected = source.with_suffix(".expected")
    if expected.exists() and expected.read_text().strip() != result.stdout.strip():
        sys.exit(f"README says that it prints:\n{expected.read_text()}")


if __name__ == "__main__":
    if sys.argv[1] == "extract":
        extract(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        run(sys.argv[2], pathlib.Path(sys.argv[3]))
