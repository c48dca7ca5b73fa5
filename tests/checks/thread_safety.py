#!/usr/bin/env python3
"""thread_safety.py BUILD [FOLDER...]: clang's thread-safety analysis (rpc/core/mutex.h) of the sources of every layer.

Reads BUILD/compile_commands.json, of a build with any compiler that is not a unity build: clang gets the paths, definitions
and standard from it, and nothing else. Generates no code, and analyses the sources of a folder together, after
precompiled headers of its own. With FOLDER, only the sources directly in these folders. CXX names the clang++ to
use; WEFT_JOBS is the number of folders at a time.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from sources import ROOT, cxx_files

LAYERS = ("rpc", "rref", "dist_autograd", "dist_optim", "parallel", "tools")
NOT_OURS = {"rpc/core/asio.cc"}  # Asio's own sources
FLAGS = ["-ferror-limit=0", "-Wno-everything", "-Wthread-safety",
         "-DASIO_HAS_CO_AWAIT", "-DASIO_HAS_STD_COROUTINE"]  # which older releases of Asio do not know that clang has
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error|fatal error): .*$", re.M)


def arguments_for_clang(command):
    """What of a compiler's command says how to read its source."""
    words, kept = iter(shlex.split(command)[1:]), []
    for word in words:
        if word in ("-I", "-isystem", "-D"):
            kept += [word, next(words)]
        elif word.startswith(("-I", "-D", "-std=")):
            kept.append(word)
    return kept


def groups(commands, folders):
    """Sources by folder and arguments. A source of several targets is in one group."""
    known = {str(file): None for file in cxx_files((".cc",)) if file.parts[0] in LAYERS} | dict.fromkeys(NOT_OURS, ())
    found = {}
    for entry in commands:
        file = pathlib.Path(entry["file"])
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else None
        if known.get(name, ()) is not None or (folders and str(pathlib.Path(name).parent) not in folders):
            continue
        known[name] = arguments_for_clang(entry["command"])
        found.setdefault((str(pathlib.Path(name).parent), tuple(known[name])), []).append(name)
    return found, sorted(name for name, arguments in known.items() if arguments is None)


def clang(compiler, flags, text):
    return subprocess.run([compiler, *FLAGS, *flags, "-"], input=text, capture_output=True, text=True)


def precompile(compiler, arguments, file):
    """The headers that most sources with these arguments include."""
    torch = "#include <torch/torch.h>\n" if any("/torch/" in word for word in arguments) else ""
    return clang(compiler, [*arguments, "-x", "c++-header", "-fpch-instantiate-templates", "-o", file],
                 f"{torch}#include <weft/rpc/rpc.h>\n")


def analyse(compiler, arguments, header, sources):
    return clang(compiler, [*arguments, *(["-include-pch", header] if header else []), "-fsyntax-only", "-x", "c++"],
                 "".join(f'#include "{ROOT / source}"\n' for source in sorted(sources)))


def main(build, *folders):
    compiler = os.environ.get("CXX") or shutil.which("clang++-15") or shutil.which("clang++")
    if compiler is None:
        sys.exit("thread_safety.py: clang++ is not installed")
    found, left_out = groups(json.loads((pathlib.Path(build) / "compile_commands.json").read_text()), set(folders))
    if not found:
        sys.exit(f"thread_safety.py: {build}/compile_commands.json has none of these sources")
    jobs = int(os.environ.get("WEFT_JOBS") or os.cpu_count() or 1)
    findings, failed = set(), False

    def report(run):
        nonlocal failed
        failed |= run.returncode != 0
        text = run.stderr.replace(f"{ROOT}/", "")
        # A mistake in a header is found in every folder that includes the header.
        new = set(FINDING.findall(text)) - findings
        if new or run.returncode != 0:
            print(text, end="", flush=True)
        findings.update(new)

    uses = collections.Counter(arguments for _, arguments in found)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        headers = {arguments: f"{folder}/{number}.pch" for number, (arguments, count) in enumerate(uses.items()) if count > 1}
        for run in pool.map(lambda item: precompile(compiler, *item), headers.items()):
            report(run)
            if run.returncode != 0:
                return 1
        runs = [pool.submit(analyse, compiler, arguments, headers.get(arguments), sources)
                for (_, arguments), sources in found.items()]
        for run in concurrent.futures.as_completed(runs):
            report(run.result())
    if left_out and not folders:
        print(f"thread_safety.py: not in this build, so not checked: {' '.join(left_out)}")
    print(f"{sum(map(len, found.values()))} sources in {len(found)} groups analysed, {len(findings)} mistakes")
    return 1 if failed or findings else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
