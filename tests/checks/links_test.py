#!/usr/bin/env python3
"""links.py finds dead links, dead anchors, pages and sections that are named and do not exist, and pages that no list has."""
import pathlib
import tempfile
import unittest

from links import problems_of_lists, problems_of_names, problems_of_page

CALLS = "# Calls\n\n## Errors & `Status`\n\n## Retries\n\n## Retries\n\n## 7. Room: how much\n\n**Limits.** None.\n\n```sh\n# not a heading\n```\n"


class Links(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.write("docs/calls.md", CALLS)
        self.write("docs/README.md", "[calls](calls.md)")
        self.write("tools/docs/mkdocs.yml", "nav:\n  - docs/README.md\n  - Calls: docs/calls.md\n")

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)
        return self.root / name

    def check(self, problem, found):
        found = list(found)
        self.assertEqual(len(found), 1 if problem else 0, found)
        self.assertIn(problem, "".join(found))

    def page(self, text, problem=""):
        self.check(problem, problems_of_page(self.write("docs/page.md", text), self.root))

    def test_links_that_lead_somewhere(self):
        self.page("[a](calls.md), [b](../docs/calls.md#errors--status), [c](#top), [d](https://weft.example/none)\n\n# Top\n")
        self.page("[second](calls.md#retries-1) and [numbered](calls.md#7-room-how-much)")

    def test_code_is_no_link(self):
        self.page("`[a](none.md)`\n\n```cpp\nauto f = [](int) { return x[0](none); };\n```\n")

    def test_a_missing_file(self):
        self.page("first\n[a](none.md)", "docs/page.md:2: none.md: no such file")
        self.page('<img src="images/none.svg" alt="">', "images/none.svg: no such file")

    def test_a_file_outside_of_the_repository(self):
        self.page("[a](../../../etc/passwd)", "no such file")

    def test_a_missing_heading(self):
        self.page("[a](calls.md#retry)", "calls.md#retry: no such heading")
        self.page("[a](#none)", "#none: no such heading")
        self.page("[a](calls.md#not-a-heading)", "no such heading")
        self.page("[a](calls.md#retries-2)", "no such heading")

    def names(self, text, problem=""):
        self.check(problem, problems_of_names(self.write("rpc/peer.h", text), self.root))

    def test_pages_and_sections_that_are_named(self):
        self.names('// See docs/calls.md, "Retries", or `docs/calls.md`, "Room", and (docs/calls.md, "Errors &\n//   Status").')
        self.names('// docs/calls.md, "Limits"')

    def test_a_named_page_that_is_missing(self):
        self.names("\n// See docs/none.md.", "rpc/peer.h:2: docs/none.md: no such page")
        self.names("// See bench/none.md.", "bench/none.md: no such page")

    def test_a_named_section_that_is_missing(self):
        self.names('// docs/calls.md, "Retries and more"', 'docs/calls.md: no heading "Retries and more"')

    def test_pages_in_their_lists(self):
        self.check("", problems_of_lists(self.root))

    def test_a_page_without_a_place(self):
        self.write("docs/new.md", "# New\n")
        found = list(problems_of_lists(self.root))
        self.assertEqual(found, ["docs/new.md: docs/README.md does not list it",
                                 "docs/new.md: the navigation in tools/docs/mkdocs.yml does not have it"])

    def test_a_place_without_a_page(self):
        self.write("tools/docs/mkdocs.yml", "nav:\n  - docs/README.md\n  - Calls: docs/calls.md\n  - Old: docs/old.md\n")
        self.check("docs/old.md: no such page", problems_of_lists(self.root))


if __name__ == "__main__":
    unittest.main()
