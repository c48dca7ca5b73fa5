#!/usr/bin/env python3
"""Every symbol of the public headers has a comment, or heads or belongs to a group of declarations that has one.

  documented_api.py            checks it, except in the folders of UNFINISHED
  documented_api.py BUILD      also: the headers that it looks at are those that the build tree BUILD installs
  documented_api.py --count    prints for each folder how many symbols there are, and how many lack a comment
  documented_api.py --list F   prints those of folder F

tools/docs/api.py says which comment documents what. Doxygen parses the headers.
"""
import collections
import pathlib
import re
import sys

from sources import ROOT

sys.path.insert(0, str(ROOT / "tools/docs"))
import api  # noqa: E402

# Folders that may have undocumented symbols, subfolders included. The list stays empty: document new symbols.
UNFINISHED = []
SKIPPED = 77


def unfinished(file, folders):
    return next((folder for folder in folders if file.startswith(folder + "/")), None)


def undocumented(reference):
    return [symbol for symbol in reference.symbols if api.needs_comment(symbol) and not reference.comment(symbol)]


def problems_of(symbols, folders):
    """symbols: the undocumented ones."""
    left = set(folders)
    for symbol in symbols:
        folder = unfinished(symbol.file, folders)
        left.discard(folder)
        if folder is None:
            yield (f"{symbol.file}:{symbol.line}: {symbol.kind} {symbol.qualified} has no comment: write one above it, above its group "
                   "of declarations, or at the end of its line")
    for folder in sorted(left):
        yield f"{folder}: all symbols have comments: remove it from UNFINISHED in tests/checks/documented_api.py"


def installed(build):
    """The headers that the install rules of a build tree name, as paths below include/weft/."""
    rules = "\n".join(path.read_text() for path in build.rglob("cmake_install.cmake"))
    return {f"{folder}/{pathlib.Path(file).name}"
            for folder, files in re.findall(r'/include/weft/([\w/]+)" TYPE FILE FILES ([^)]*)\)', rules)
            for file in re.findall(r'"([^"]+\.h)"', files)}


def install_problems(listed, rules):
    yield from (f"{header} is installed, but tools/docs/api.py does not list it" for header in sorted(rules - listed))
    yield from (f"{header} is listed by tools/docs/api.py, but not installed" for header in sorted(listed - rules))


def count(reference):
    total, lacking = (collections.Counter("/".join(pathlib.PurePath(symbol.file).parent.parts[:2]) for symbol in symbols)
                      for symbols in (filter(api.needs_comment, reference.symbols), undocumented(reference)))
    for folder in sorted(total):
        print(f"{folder}: {lacking[folder]} of {total[folder]} symbols have no comment")
    print(f"all: {lacking.total()} of {total.total()}")


def main(arguments):
    if not api.has_doxygen():
        print("documented_api: skipped, there is no doxygen (./dev test and ./dev docs install it)")
        return SKIPPED
    reference = api.Api()
    if arguments[:1] == ["--count"]:
        count(reference)
        return 0
    found = undocumented(reference)
    if arguments[:1] == ["--list"]:
        found = [symbol for symbol in found if symbol.file.startswith(arguments[1] + "/")]
        problems = list(problems_of(found, []))
    else:
        problems = list(problems_of(found, UNFINISHED))
        if arguments:
            listed = {str(header) for layer in reference.layers for header in layer.headers}
            problems += install_problems(listed, installed(pathlib.Path(arguments[0])))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"documented_api: {len(reference.symbols)} symbols, {len(found)} without a comment")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
