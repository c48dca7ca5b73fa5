#!/usr/bin/env python3
"""The format of every C++ file, by the clang-format that ./dev pins in .venv. With --fix the files are rewritten."""
import re
import shutil
import subprocess
import sys

from sources import ROOT, cxx_files

MAJOR = "19"  # releases differ in their output, and another one would report errors in correct files


def clang_format():
    for candidate in [str(ROOT / ".venv/bin/clang-format"), f"clang-format-{MAJOR}", "clang-format"]:
        if shutil.which(candidate):
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True).stdout
            if f"version {MAJOR}." in version:
                return candidate
    return None


def main():
    tool = clang_format()
    if tool is None:
        print(f"format: skipped, there is no clang-format {MAJOR} (./dev setup installs it into .venv)")
        return 77
    files = [str(f) for f in cxx_files()]
    if not files:
        return 0
    if "--fix" in sys.argv[1:]:
        return subprocess.run([tool, "-i", *files], cwd=ROOT).returncode
    check = subprocess.run([tool, "--dry-run", "--Werror", *files], cwd=ROOT, capture_output=True, text=True)
    faults = re.findall(r"^(\S+?):(\d+):\d+: error", check.stderr, re.M)
    for name in dict.fromkeys(name for name, _ in faults):
        print(f"{name}: not formatted, lines {', '.join(dict.fromkeys(n for f, n in faults if f == name))}")
    if check.returncode == 0:
        print(f"format: {len(files)} files as they should be")
    else:
        print("format: run ./dev format" if faults else check.stderr)
    return check.returncode


if __name__ == "__main__":
    sys.exit(main())
