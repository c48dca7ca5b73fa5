#!/usr/bin/env python3
"""documented_api.py knows which comment documents which symbol, and finds the symbols without one."""
import pathlib
import sys
import tempfile
import unittest

from documented_api import SKIPPED, api, install_problems, installed, problems_of, undocumented

CMAKE = """weft_layer(core FOLDERS core EXCEPT core/extra DEPENDS Threads::Threads)
weft_layer(extra FOLDERS core/extra DEPENDS weft::core)
"""
HEADER = """// Contract of Widget: what it is.
#pragma once

#define WEFT_EXPORT __attribute__((visibility("default")))

namespace weft {

namespace detail {
int hidden();
}

class WEFT_EXPORT Widget {
 public:
  explicit Widget(int size);
  ~Widget();
  Widget(const Widget&) = delete;

  // Heads a group of two.
  int first() const { return 1; }
  template <class T>
  int second(T value) {
    // Not a comment of third().

    return 2;
  }

  int third();
  int fourth(int a,
             int b);  // at the end of its line
  int fifth();

 private:
  int sixth();
};

// Has fields.
struct Fields {
  int one = 1;
  int two = 2;  // explained

  int three = 3;
};

enum class Color { red, green };
// Of the wind.
enum class Wind {
  north,  // cold

  south,
};

}  // namespace weft
"""


@unittest.skipUnless(api.has_doxygen(), "no doxygen")
class DocumentedApi(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write("CMakeLists.txt", CMAKE)
        self.write("core/widget.h", HEADER)

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def undocumented(self):
        return [symbol.qualified.removeprefix("weft::") for symbol in undocumented(api.Api(self.root))]

    def test_finds_what_has_no_comment(self):
        self.assertEqual(self.undocumented(), ["WEFT_EXPORT", "Widget::third", "Widget::fifth", "Fields::three", "Color",
                                               "Color::red", "Color::green", "Wind::south"])

    def test_a_comment_documents(self):
        self.write("core/widget.h", HEADER.replace("  int third();", "  // Now it has one.\n  int third();"))
        self.assertNotIn("Widget::third", self.undocumented())
        self.assertNotIn("Widget::fifth", self.undocumented())  # of the group

    def test_the_contract_documents_the_types_that_it_names(self):
        self.write("core/widget.h", HEADER.replace("of Widget", "of Widget and of Color"))
        self.assertEqual([name for name in self.undocumented() if name.startswith("Color")], [])
        self.write("core/widget.h", HEADER.replace("of Widget", "of nothing"))
        self.assertIn("Widget", self.undocumented())

    def test_a_type_documents_the_members_that_it_names(self):
        self.write("core/widget.h", HEADER.replace("// Has fields.", "// Has fields; three is the last."))
        self.assertNotIn("Fields::three", self.undocumented())

    def test_headers_by_layer(self):
        self.write("core/internal/private.h", "int x;\n")
        self.write("core/extra/more.h", "// More.\n")
        self.assertEqual([(layer.name, [str(header) for header in layer.headers]) for layer in api.layers(self.root)],
                         [("core", ["core/widget.h"]), ("extra", ["core/extra/more.h"])])

    def test_unfinished_folders(self):
        symbols = undocumented(api.Api(self.root))
        self.assertEqual(list(problems_of(symbols, ["core"])), [])
        self.assertEqual(len(list(problems_of(symbols, []))), len(symbols))
        self.assertIn("old: all symbols have comments", list(problems_of(symbols, ["core", "old"]))[-1])

    def test_install_rules(self):
        self.write("build/cmake_install.cmake", """
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/include/weft/core" TYPE FILE FILES "/src/core/widget.h")
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/include/weft/core" TYPE FILE FILES "/src/core/other.h")
""")
        rules = installed(self.root / "build")
        self.assertEqual(rules, {"core/widget.h", "core/other.h"})
        self.assertEqual(list(install_problems({"core/widget.h", "core/gone.h"}, rules)),
                         ["core/other.h is installed, but tools/docs/api.py does not list it",
                          "core/gone.h is listed by tools/docs/api.py, but not installed"])


if __name__ == "__main__":
    if not api.has_doxygen():
        sys.exit(SKIPPED)
    unittest.main()
