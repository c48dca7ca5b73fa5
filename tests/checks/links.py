#!/usr/bin/env python3
"""The links of README, CONTRIBUTING, CHANGELOG, bench/README.md and docs/ lead somewhere.

  - A relative link, or an image, names a file of the repository, and an anchor a heading of the page.
  - A page of docs/ or bench/ that a comment, a message or a page names exists (`docs/calls.md`), and so does the section that it
    names after that (`docs/calls.md`, "Resumable calls").
  - Each page of docs/ is in docs/README.md and in the navigation of the site (tools/docs/mkdocs.yml).

The links of the built site are checked by ./dev docs.
"""
import pathlib
import re
import sys

from sources import ROOT, cxx_files

FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.M | re.S)
LINK = re.compile(r"""\]\(([^()\s]*)\)|<img[^>]*?\ssrc="([^"]*)"|<a[^>]*?\shref="([^"]*)\"""")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$", re.M)
NAMED = re.compile(r"""\b((?:docs|bench)/[\w/]+\.md)\b(?:`?\)?,? "([^"]+)")?""")
CONTINUED = re.compile(r"\n[ \t]*(?://|#)?[ \t]*")  # a sentence that continues on the next line, also in a comment


def pages(root=ROOT):
    return [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "bench/README.md")] + sorted((root / "docs").rglob("*.md"))


def prose(text):
    """The text with its blocks of code, and code in lines, blanked: places stay."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])
    return re.sub(r"`[^`\n]*`", blank, FENCE.sub(blank, text))


def headings(text):
    return [heading[1] for heading in HEADING.finditer(FENCE.sub("", text))]


def sections(text):
    """The names by which sections are called: headings, also without the number or what follows a colon, and bold leads."""
    leads = re.findall(r"^\*\*([^*]+?)\.?\*\*", FENCE.sub("", text), re.M)
    whole = [re.sub(r"^[\d.]+ ", "", heading.replace("`", "")) for heading in headings(text) + leads]
    return {*whole, *(name.partition(":")[0] for name in whole)}


def anchors(text):
    """The anchors of the headings, as GitHub makes them."""
    found = set()
    for heading in headings(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number, anchor = 0, slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found


def line_of(text, place):
    return text.count("\n", 0, place) + 1


def problems_of_page(page, root=ROOT):
    text = page.read_text()
    for match in LINK.finditer(prose(text)):
        target = next(group for group in match.groups() if group is not None)
        if re.match(r"[a-z]+:", target):
            continue
        where = f"{page.relative_to(root)}:{line_of(text, match.start())}: {target}"
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.is_relative_to(root) or not file.exists():
            yield f"{where}: no such file"
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text())):
            yield f"{where}: no such heading"


def problems_of_names(file, root=ROOT):
    """Of the pages and sections that a file names in words."""
    text = file.read_text(errors="replace")
    for match in NAMED.finditer(text.replace("\\\"", "\"")):
        page, section = root / match[1], match[2]
        where = f"{file.relative_to(root)}:{line_of(text, match.start())}: {match[1]}"
        if not page.exists():
            yield f"{where}: no such page"
        elif section and (wanted := CONTINUED.sub(" ", section).rstrip(",.").replace("`", "")) not in sections(page.read_text()):
            yield f"{where}: no heading \"{wanted}\""


def problems_of_lists(root=ROOT):
    listed, navigation = (root / "docs/README.md").read_text(), (root / "tools/docs/mkdocs.yml").read_text()
    names = {str(path.relative_to(root / "docs")) for path in (root / "docs").rglob("*.md")}
    for name in sorted(names):
        if name != "README.md" and f"({name})" not in listed:
            yield f"docs/{name}: docs/README.md does not list it"
        if f"docs/{name}" not in navigation:
            yield f"docs/{name}: the navigation in tools/docs/mkdocs.yml does not have it"
    for name in re.findall(r"\bdocs/([\w/]+\.md)$", navigation, re.M):
        if name not in names:
            yield f"tools/docs/mkdocs.yml: docs/{name}: no such page"


def main():
    problems = list(problems_of_lists())
    for page in pages():
        problems += problems_of_page(page)
    others = [ROOT / path for path in cxx_files()] + sorted(
        path for folder in ("tests", "tools", "cmake", "examples") for suffix in ("*.py", "*.sh", "*.cmake", "*.txt")
        for path in (ROOT / folder).rglob(suffix))
    for file in [*pages(), *others, ROOT / "dev"]:
        if file.name not in ("links.py", "links_test.py"):
            problems += problems_of_names(file)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
