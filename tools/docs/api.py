"""The public API as data: the symbols of the public headers, each with its comment and its declaration.

Doxygen parses the headers (its XML output: kind, name, scope, line). The comments are read from the source, because
this tree writes plain `//` comments, and a comment heads a group of declarations:

    // What is true of both.          <- documents read() and write(), up to the next blank line or comment
    void read();
    void write();
    int size() const;  // in bytes    <- documents size()

The header's first comment is the contract of the header. It documents the types that it names. The comment of a type
documents the members that it names (fields as words, functions as `name()` or at the beginning of a line of a table),
and those fields, enumerators and constructors that directly follow it.

Lines are related by their indentation, which clang-format keeps.
"""
import dataclasses
import functools
import pathlib
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOXYFILE = pathlib.Path(__file__).with_name("Doxyfile")
LAYER = re.compile(r"^\s*weft_layer\((\w+)\s+FOLDERS\s+([^)]*?)\s*(?:EXCEPT\s+([^)]*?)\s*)?DEPENDS", re.M)
# Names with a meaning in the language, by the protocols of coroutines and ranges, or in weft's protocols: the list of a
# class's methods, and the members that WEFT_CODEC defines.
PROTOCOL = {"promise_type", "get_return_object", "initial_suspend", "final_suspend", "return_void", "return_value",
            "unhandled_exception", "yield_value", "await_transform", "await_ready", "await_suspend", "await_resume",
            "begin", "end", "Service", "weft_name", "weft_fields"}
# Operators of comparison, access and conversion have the same meaning for every type.
OPERATOR = re.compile(r"operator ?(==|!=|<=>|<|\*|->|\+\+|\[\]|bool|co_await)$")


@dataclasses.dataclass
class Layer:
    name: str  # of the component that a program links: weft::NAME
    folders: list
    headers: list  # paths below the root


def layers(root=ROOT):
    """The layers in the order of CMakeLists.txt, with the headers that they install."""
    found = []
    for name, folders, excepted in LAYER.findall((root / "CMakeLists.txt").read_text()):
        folders, excepted = folders.split(), [f"{folder}/" for folder in excepted.split()]
        headers = sorted(path.relative_to(root) for folder in folders for path in (root / folder).rglob("*.h"))
        found.append(Layer(name, folders, [path for path in headers if "internal" not in path.parts
                                           and not str(path).startswith(tuple(excepted))]))
    return found


@dataclasses.dataclass
class Symbol:
    kind: str  # class, struct, concept, function, variable, typedef, enum, enumvalue, define
    scope: str  # the qualified name of the class, enum or namespace around it
    name: str
    file: str
    line: int
    arguments: str = ""
    parent: "Symbol" = None  # the class or enum that it is a member of

    @property
    def qualified(self):
        return f"{self.scope}::{self.name}" if self.scope else self.name


def is_type(symbol):
    return symbol.kind in ("class", "struct", "union")


def needs_comment(symbol):
    """False for a declaration that needs no comment."""
    own = symbol.scope.rpartition("::")[2]
    arguments = symbol.arguments.replace(" ", "")
    special = symbol.kind == "function" and (
        symbol.name.startswith("~") or arguments.endswith(("=delete", "=default")) or " override" in symbol.arguments
        or (symbol.name in (own, "operator=") and re.match(rf"\((const)?{re.escape(own)}(<[^()]*>)?&&?\w*\)", arguments))
        or (symbol.name == own and arguments.startswith("()")))
    specialization = "<" in symbol.qualified.replace("operator<", "")
    guide = symbol.parent is None and symbol.name[:1].isupper() and ") ->" in symbol.arguments  # of deduction
    return not (special or specialization or guide or OPERATOR.match(symbol.name) or symbol.name in PROTOCOL
                or "detail::" in symbol.arguments or symbol.name.startswith("WEFT_DETAIL_"))


def doxygen(headers, root=ROOT):
    """The symbols of the headers. Without `detail`, and without private members."""
    with tempfile.TemporaryDirectory() as folder:
        config = DOXYFILE.read_text() + f"\nOUTPUT_DIRECTORY={folder}\nINPUT={' '.join(map(str, headers))}\n"
        subprocess.run(["doxygen", "-"], input=config, text=True, cwd=root, check=True, capture_output=True)
        symbols, namespaces = [], {""}
        for path in sorted(pathlib.Path(folder, "xml").glob("*.xml")):
            compound = ElementTree.parse(path).getroot().find("compounddef")
            if compound is not None:
                symbols += symbols_of(compound)
                if compound.get("kind") == "namespace":
                    namespaces.add(compound.findtext("compoundname"))
    public = [symbol for symbol in symbols if not re.search(r"(^|::)(detail|@\d+|anonymous_namespace\{.*)(::|$)",
                                                            symbol.qualified)]
    public = {(symbol.file, symbol.line, symbol.name): symbol for symbol in public}
    types = {symbol.qualified: symbol for symbol in public.values() if is_type(symbol) or symbol.kind == "enum"}
    for symbol in public.values():
        symbol.parent = types.get(symbol.scope)
    # The others are in private classes.
    return [symbol for symbol in public.values() if outermost(symbol).scope in namespaces]


def outermost(symbol):
    return symbol if symbol.parent is None else outermost(symbol.parent)


def symbols_of(compound):
    kind, name = compound.get("kind"), compound.findtext("compoundname").replace(" ", "")
    scope = name if kind != "file" else ""
    if kind in ("class", "struct", "union", "concept") and compound.get("prot") != "private":
        place = compound.find("location")
        outer, _, own = split_scope(name)
        yield Symbol(kind, outer, own, place.get("file"), int(place.get("line")))
    for member in compound.iter("memberdef"):
        place, member_kind = member.find("location"), member.get("kind")
        if member.get("prot") == "private" or (kind == "file" and member_kind != "define"):
            continue
        if member_kind == "friend":
            if "operator" not in member.findtext("name") and member.findtext("argsstring", "") == "":
                continue  # friend class
            member_kind = "function"
        own = member.findtext("name")
        yield Symbol(member_kind, scope, own, place.get("file"), int(place.get("line")),
                     member.findtext("argsstring") or "")
        for value in member.findall("enumvalue"):
            yield Symbol("enumvalue", f"{scope}::{own}", value.findtext("name"), place.get("file"), 0)


def split_scope(name):
    """The last `::` that is not within template arguments."""
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += {">": 1, "<": -1}.get(name[at], 0)
        if depth == 0 and name[at - 1:at + 1] == "::":
            return name[:at - 1], "::", name[at + 1:]
    return "", "", name


class Header:
    """The text of one header, by line (from 1), with its comments."""

    def __init__(self, text):
        self.lines = [""] + text.splitlines()
        first = 1
        while first < len(self.lines) and self.lines[first].startswith("//"):
            first += 1
        self.contract = comment_text(self.lines[1:first])
        self.code = [split_comment(line)[0] for line in self.lines]
        self.trailing = [split_comment(line)[1] for line in self.lines]

    def is_comment(self, line):
        return self.lines[line].lstrip().startswith("//")

    def indent(self, line):
        return len(self.lines[line]) - len(self.lines[line].lstrip())

    def start(self, line):
        """The first line of the declaration that has this line."""
        while line > 1 and self.code[line - 1].strip() and not ends_declaration(self.code[line - 1]):
            line -= 1
        return line

    def end(self, line):
        """The last line of the declaration that starts there, without a body."""
        depth = 0
        for at in range(line, len(self.lines)):
            code = self.code[at]
            for position, char in enumerate(code):
                depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
                if depth == 0 and (char == ";" or (char == "{" and not code[position:].startswith("{}"))):
                    return at
        return line

    def comment(self, line, enumerator=False):
        """The comment of the declaration at this line: the one that heads its group, and its trailing comments."""
        start = line if enumerator else self.start(line)
        own = self.own_trailing(start, line if enumerator else self.end(start))
        above = self.heading(start)
        return "\n\n".join(text for text in (above, own) if text)

    def opens(self, line, parent):
        """Returns whether the group of this line is the first of the type that begins at line `parent`."""
        above = self.group(line) - 1
        if self.code[above].strip() == "public:":
            above -= 1
        return self.code[above].rstrip().endswith("{") and self.start(above) <= parent <= above

    def own_trailing(self, start, end):
        found = []
        for line in range(start, end + 1):
            if not self.trailing[line] or self.is_comment(line):
                continue
            found.append(self.trailing[line])
            column = self.lines[line].index(self.trailing[line])
            while line + 1 < len(self.lines) and self.is_comment(line + 1) and self.indent(line + 1) == column > self.indent(start):
                line += 1
                found.append(self.lines[line].strip())
        return comment_text(found)

    def heading(self, start):
        """The comment above the group of declarations that this line is in."""
        first = self.group(start)
        last = first - 1
        while first > 1 and self.is_comment(first - 1) and self.indent(first - 1) == self.indent(last):
            first -= 1
        return comment_text([line.strip() for line in self.lines[first:last + 1]])

    def group(self, start):
        """The first line of the group: below a comment, a blank line, or the line that opens the scope."""
        indent, line = self.indent(start), start
        while line > 1:
            above = line - 1
            if not self.lines[above].strip():
                break
            if self.indent(above) > indent:  # a body, the rest of a declaration, or the continued comment of a member
                while above > 1 and (not self.lines[above].strip() or self.indent(above) > indent):
                    above -= 1
                if self.indent(above) < indent or self.is_comment(above):
                    break
            elif self.indent(above) < indent or self.is_comment(above):
                break
            elif self.code[above].startswith("#") and not self.code[above].startswith("#if"):
                break
            elif self.code[above].strip().startswith("}"):  # the end of a body, which may have blank lines
                above -= 1
                while above > 1 and (not self.lines[above].strip() or self.indent(above) > indent):
                    above -= 1
            line = above
        return line


def ends_declaration(code):
    """Returns whether a line ends a declaration or a body, or is a directive, a macro or an access specifier."""
    return bool(re.search(r"[;{}]$|^ *(public|protected|private):$|^ *[A-Z_]{4,}\(.*\)$|^#", code))


def split_comment(line):
    """(code, comment): at the first // that is not within a string."""
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|//', line):
        if match[0] == "//":
            return line[:match.start()].rstrip(), line[match.start():]
    return line.rstrip(), ""


def comment_text(lines):
    """The comment without its slashes."""
    return "\n".join(re.sub(r"^//+ ?", "", line) for line in lines).strip("\n")


def names_type(comment, name):
    """Returns whether the comment names the type, or the holder of a LibTorch module: `Linear` for `LinearImpl`."""
    name = name.removesuffix("Impl")
    prose = "\n".join(line for line in comment.splitlines() if not line.startswith("  "))
    return bool(re.search(rf"\b{re.escape(name)}\b(?!::)", prose))


def names_member(comment, symbol):
    name = re.escape(symbol.name)
    if symbol.kind == "function":
        return bool(re.search(rf"(?<![\w>]){name}\(|^  +{name} ", comment, re.M))
    return bool(re.search(rf"\b{name}\b", comment))


class Api:
    """All public headers and their symbols."""

    def __init__(self, root=ROOT, headers=None):
        self.root = root
        self.layers = layers(root)
        headers = headers or [path for layer in self.layers for path in layer.headers]
        self.symbols = doxygen(headers, root)
        for symbol in self.symbols:
            if symbol.kind == "enumvalue":
                self.place(symbol)
        self.symbols.sort(key=lambda symbol: (symbol.file, symbol.line, symbol.kind == "enumvalue"))

    @functools.cache
    def header(self, file):
        return Header((self.root / file).read_text())

    def place(self, value):
        """The line of an enumerator, which Doxygen does not tell."""
        header = self.header(value.file)
        for line in range(value.parent.line, len(header.lines)):
            if re.search(rf"\b{re.escape(value.name)}\b", header.code[line].partition("{")[2] if line == value.parent.line
                         else header.code[line]):
                value.line = line
                return
        value.line = value.parent.line

    def comment(self, symbol):
        """The comment that documents a symbol; empty: none does."""
        header = self.header(symbol.file)
        if symbol.kind == "define":
            text = header.heading(symbol.line)
        elif symbol.kind == "enumvalue":
            text = header.comment(symbol.line, enumerator=True) if symbol.line != symbol.parent.line else self.comment(symbol.parent)
        else:
            text = header.comment(symbol.line)
        if text:
            return text
        if (is_type(symbol) or symbol.kind in ("concept", "typedef", "enum")) and names_type(header.contract, symbol.name):
            return header.contract
        if symbol.parent is not None and (about := self.comment(symbol.parent)) and (
                names_member(about, symbol) or ((symbol.kind in ("variable", "enumvalue") or symbol.name == symbol.parent.name.partition("<")[0])
                                                and header.opens(symbol.line if symbol.kind == "enumvalue" else header.start(symbol.line), symbol.parent.line))):
            return about
        if symbol.parent is None and names_member(header.contract, symbol):
            return header.contract
        return ""


def has_doxygen():
    return shutil.which("doxygen") is not None
