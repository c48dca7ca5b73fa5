#!/usr/bin/env python3
"""Builds the documentation site: README, docs/*.md, bench/README.md and the API reference. ./dev docs runs it.

  build_site.py SITE    SITE: the folder of the site; the sources that it is built from go to SITE.source

The pages keep their paths, so that their links hold in the repository and in the site. Zensical renders them by
mkdocs.yml. At the end every link and anchor of the site is checked, and that a page loads nothing from elsewhere.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

import api
import api_pages
from html_links import problems_of_site

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPAN = re.compile(r'(<span class="o">::</span>)?<span class="n[cf]?">([A-Z]\w+)</span>')


def source_pages():
    """Paths below the root of the pages that people write."""
    return [pathlib.Path(name) for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")] + sorted(
        path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))


def markdown(text):
    """GitHub's Markdown as Python-Markdown reads it: a list, a table and a fence begin after an empty line."""
    lines, fenced, before = [], False, ""
    for line in text.splitlines():
        opens = re.match(r" *(- |\* |\d+\. |\|)", line)
        if not fenced and opens and before.strip() and not re.match(r" *(- |\* |\d+\. |\|)|  ", before):
            lines.append("")
        if re.match(r" *```", line):
            fenced = not fenced
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def prepare(source):
    """Writes the pages and the configuration; returns the links of types."""
    shutil.rmtree(source, ignore_errors=True)
    pages = source_pages()
    for page in pages:
        write(source / "pages" / page, markdown((ROOT / page).read_text()))
    for folder in ("docs/images",):
        shutil.copytree(ROOT / folder, source / "pages" / folder)
    for asset in ("site.css", "iframe-worker.js"):
        shutil.copy(HERE / asset, source / "pages")
    reference = api.Api()
    found, navigation = api_pages.pages(reference, {str(page) for page in pages}, (ROOT / "docs/architecture.md").read_text())
    for path, text in found.items():
        write(source / "pages" / path, text)
    # JSON is YAML: the navigation of the API takes the place of its marker.
    config = (HERE / "mkdocs.yml").read_text().replace("API_NAVIGATION", json.dumps(navigation))
    write(source / "mkdocs.yml", config)
    return api_pages.type_links(reference)


def link_types(site, links):
    """Names of public types in code become links: on pages of the API all, elsewhere those with a namespace."""
    for page in site.rglob("*.html"):
        path = page.relative_to(site)
        up = "../" * (len(path.parts) - 1)

        def link(match):
            target = links.get(match[2])
            if target is None or (not match[1] and path.parts[0] != "api"):
                return match[0]
            return f'{match[1] or ""}<a class="n" href="{up}{target}">{match[2]}</a>'

        text = page.read_text()
        linked = SPAN.sub(link, text)
        if linked != text:
            page.write_text(linked)


def main(site):
    source = site.with_name(site.name + ".source")
    links = prepare(source)
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--config-file", str(source / "mkdocs.yml")],
                   cwd=source, check=True)
    shutil.copytree(source / "site", site)
    link_types(site, links)
    problems = problems_of_site(site)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
