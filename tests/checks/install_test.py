#!/usr/bin/env python3
"""install_test.py CMAKE COMPILER BUILD LIBTORCH [NAME=OBJECT...]: `cmake --install` of a tree in which not every component was built
(cmake/WeftInstall.cmake), the components of cmake/weftConfig.cmake.in, and the installation of the build tree BUILD: its headers include
no other headers of weft. The build compiles the programs of README, docs/ and examples/ with links to these headers
(WEFT_INSTALLED_HEADERS); the compiled programs OBJECT link with the installed weft::NAME."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

CMAKE_FOLDER = pathlib.Path(__file__).resolve().parents[2] / "cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(small VERSION 1.0 LANGUAGES CXX)
include(GNUInstallDirs)
include({CMAKE_FOLDER}/WeftInstall.cmake)
function(weft_files OUT)
endfunction()
foreach(layer one two)
  add_library(weft_${{layer}} STATIC layer.cc)
  weft_install_layer(${{layer}})
endforeach()
foreach(layer one two)
  weft_leave_out_unbuilt(${{layer}})
endforeach()
"""


class Install(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "CMakeLists.txt").write_text(PROJECT)
        (self.root / "layer.cc").write_text("int layer() { return 1; }\n")
        self.cmake(0, "-G", "Ninja", "-S", self.root, "-B", self.root / "build", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                   "-DCMAKE_CXX_COMPILER_WORKS=ON", "-DCMAKE_INSTALL_LIBDIR=lib")
        self.cmake(0, "--build", self.root / "build", "--target", "weft_one")

    def cmake(self, status, *arguments):
        ended = subprocess.run([CMAKE, *map(str, arguments)], capture_output=True, text=True)
        output = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, status, output)
        return " ".join(output.split())

    def install(self, status, *arguments):
        return self.cmake(status, "--install", self.root / "build", "--prefix", self.root / "prefix", *arguments)

    def installed(self):
        files = (self.root / "prefix").rglob("*")
        return {file.name for file in files if file.is_file() and "noconfig" not in file.name}

    def test_a_layer_that_was_not_built_is_left_out(self):
        self.assertIn("the component 'two' is left out, because it was not built", self.install(0))
        self.assertEqual(self.installed(), {"libweft_one.a", "weft_one.cmake"})
        self.cmake(0, "--build", self.root / "build")
        self.install(0)
        self.assertEqual(self.installed(), {"libweft_one.a", "weft_one.cmake", "libweft_two.a", "weft_two.cmake"})

    def test_a_component_that_is_asked_for_must_be_there(self):
        self.install(0, "--component", "one")
        self.assertIn("the component 'two' was not built: cmake --build", self.install(1, "--component", "two"))
        self.assertEqual(self.installed(), {"libweft_one.a", "weft_one.cmake"})


TWICE = f"""
cmake_minimum_required(VERSION 3.25)
project(twice LANGUAGES CXX)
include(CMakePackageConfigHelpers)
configure_package_config_file({CMAKE_FOLDER}/weftConfig.cmake.in ${{CMAKE_BINARY_DIR}}/weft/weftConfig.cmake INSTALL_DESTINATION weft)
file(TOUCH ${{CMAKE_BINARY_DIR}}/weft/weft_rpc.cmake ${{CMAKE_BINARY_DIR}}/weft/weft_observe.cmake)
set(weft_DIR ${{CMAKE_BINARY_DIR}}/weft)
find_package(weft REQUIRED COMPONENTS rpc OPTIONAL_COMPONENTS observe)
find_package(weft REQUIRED COMPONENTS rpc OPTIONAL_COMPONENTS observe)
"""


class Components(unittest.TestCase):
    def test_the_package_may_be_found_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "CMakeLists.txt").write_text(TWICE)
            ended = subprocess.run([CMAKE, "-G", "Ninja", "-S", root, "-B", root / "build", f"-DCMAKE_CXX_COMPILER={COMPILER}"],
                                   capture_output=True, text=True)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_the_package_knows_every_layer_and_what_it_needs(self):
        needs = {}  # by layer, in the order of the layers
        for name, text in re.findall(r"weft_layer\((\w+) (.*?)\)", (CMAKE_FOLDER.parent / "CMakeLists.txt").read_text(), re.S):
            direct = [layer for layer in re.findall(r"weft::(\w+)", text.partition("DEPENDS")[2]) if layer != "libtorch"]
            needs[name] = set(direct).union(*(needs[layer] for layer in direct))
        known = {}
        for name, text in re.findall(r"set\(_weft_(\w+)(.*?)\)", (CMAKE_FOLDER / "weftConfig.cmake.in").read_text(), re.S):
            known[name] = [word for part in text.split() for word in
                           (known[part[8:-1]] if part.startswith("${_weft_") else [part])]
        self.assertEqual(set(known["all"]), set(needs))
        for place, name in enumerate(known["all"]):
            self.assertEqual(set(known["needs_" + name]), needs[name], name)
            self.assertLessEqual(needs[name], set(known["all"][:place]), name)


USER = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(weft REQUIRED COMPONENTS {components})
foreach(program IN ITEMS {programs})
  string(REPLACE "=" ";" program "${{program}}")
  list(POP_FRONT program layer)
  add_executable(uses_${{layer}} ${{program}})
  set_source_files_properties(${{program}} PROPERTIES EXTERNAL_OBJECT ON)
  set_target_properties(uses_${{layer}} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(uses_${{layer}} PRIVATE weft::${{layer}})
endforeach()
"""


RPC_ALONE = """
cmake_minimum_required(VERSION 3.25)
project(rpc_alone LANGUAGES CXX)
find_package(weft REQUIRED COMPONENTS rpc)
add_executable(rpc_alone main.cc)
target_include_directories(rpc_alone BEFORE PRIVATE missing)
target_link_libraries(rpc_alone PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,weft::rpc>")
"""


class InstalledTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        built = {library.stem.removeprefix("libweft_") for library in BUILD.glob("libweft_*.*")}
        cls.layers = sorted(built & set(re.findall(r"weft_layer\((\w+) ", (CMAKE_FOLDER.parent / "CMakeLists.txt").read_text())))
        # Links take no space. Shared libraries are copied, because CMake changes the paths in what it has installed.
        links = {} if any(BUILD.glob("libweft_*.so")) else {"CMAKE_INSTALL_MODE": "ABS_SYMLINK"}
        for layer, prefix in [*((layer, "prefix") for layer in cls.layers), ("rpc", "rpc_alone/prefix")]:
            subprocess.run([CMAKE, "--install", BUILD, "--prefix", cls.root / prefix, "--component", layer], check=True,
                           stdout=subprocess.DEVNULL, env={**os.environ, **links})

    def build(self, source, *arguments):
        for step in (["-G", "Ninja", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={source / 'prefix'}",
                      f"-DCMAKE_CXX_COMPILER={COMPILER}", *arguments], ["--build", source / "build"]):
            ended = subprocess.run([CMAKE, *step], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_installed_headers_include_only_installed_headers(self):
        include = self.root / "prefix/include"
        headers = sorted(include.rglob("*.h"))
        self.assertTrue(headers)
        for header in headers:
            with self.subTest(str(header.relative_to(include))):
                needed = re.findall(r"^\s*#\s*include\s*<(weft/[^>]+)>", header.read_text(), re.M)
                self.assertEqual([name for name in needed if not (include / name).exists()], [])

    def test_the_build_compiles_programs_with_these_headers(self):
        installed, linked = ({str(header.relative_to(include)) for header in include.rglob("*.h")}
                             for include in (self.root / "prefix/include", BUILD / "installed/include"))
        self.assertEqual(linked, installed, "the layers that were not built are not installed: build them all")

    def test_every_component_is_found_and_links(self):
        (self.root / "CMakeLists.txt").write_text(USER.format(components=" ".join(self.layers), programs=" ".join(PROGRAMS)))
        self.build(self.root, f"-DWEFT_LIBTORCH={LIBTORCH}")

    def test_rpc_needs_neither_curl_nor_json(self):
        alone = self.root / "rpc_alone"
        include = alone / "prefix/include"
        (alone / "CMakeLists.txt").write_text(RPC_ALONE)
        (alone / "main.cc").write_text("".join(f"#include <{header.relative_to(include)}>\n" for header in sorted(include.rglob("*.h"))) +
                                       "int main() { weft::rpc::Agent agent{{.name = \"alone\"}}; }\n")
        for header in ("curl/curl.h", "nlohmann/json.hpp"):
            (alone / "missing" / header).parent.mkdir(parents=True)
            (alone / "missing" / header).write_text("#error weft::rpc needs Asio, Cap'n Proto and OpenSSL alone\n")
        # Every object of the library is linked, so that a symbol of another library is not found.
        self.build(alone, "-DCMAKE_DISABLE_FIND_PACKAGE_CURL=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON")
        subprocess.run([alone / "build/rpc_alone"], check=True)


if __name__ == "__main__":
    CMAKE, COMPILER, BUILD, LIBTORCH, *PROGRAMS = sys.argv[1:]
    BUILD = pathlib.Path(BUILD)
    unittest.main(argv=sys.argv[:1], verbosity=2)
