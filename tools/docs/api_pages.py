"""The pages of the API reference: Markdown, one page a header, an index a layer. See build_site.py."""
import re
import textwrap

from api import is_type, needs_comment, outermost

CODE = re.compile(r"`[^`]+`|https?://\S+[\w/]|\b(?:[\w]+(?:::\w+)+(?:<[^<>\s]*>)?(?:\(\))?|~?\w+(?:<[^<>]*>)?\(\)|[a-z]\w*_\w+(?:\.h)?|"
                  r"[A-Z]\w*(?:<[^<>]*>)+|[a-z_/]+/[a-z_/]+\.h)")
PAGE = re.compile(r"\bdocs/([\w/]+)\.md\b")


def page_of(header):
    return f"api/{header.with_suffix('.md')}"


def up(page):
    """From a page to the root of the site."""
    return "../" * page.count("/")


def inline(text, page, pages):
    """A line of a comment as Markdown: names become code, and pages of docs/ links."""
    parts, last = [], 0
    for match in CODE.finditer(text):
        parts += [escaped(text[last:match.start()]), match[0] if match[0][0] == "`" or "://" in match[0] else f"`{match[0]}`"]
        last = match.end()
    parts.append(escaped(text[last:]))
    return PAGE.sub(lambda name: f"[{name[0]}]({up(page)}{name[0]})" if name[0] in pages else name[0], "".join(parts))


def escaped(text):
    return re.sub(r"([\\*_\[\]#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def prose(comment, page, pages):
    """A comment as Markdown: paragraphs, lists, and code where it is indented."""
    out, code = [], []

    def flush():
        while code and not code[-1].strip():
            code.pop()
        if code:
            out.extend(["", "```cpp", *textwrap.dedent("\n".join(code)).splitlines(), "```", ""])
        code.clear()

    item = False
    for line in comment.splitlines():
        bullet = re.match(r" *- ", line)
        if line.startswith("  ") and not bullet and not item:
            code.append(line)
            continue
        if code and not line.strip():
            code.append("")
            continue
        flush()
        if bullet:
            if not item:
                out.append("")
            out.append("- " + inline(line[bullet.end():], page, pages))
        else:
            out.append(("    " if item and line.startswith("  ") else "") + inline(line.strip(), page, pages))
        item = bool(bullet) or (item and line.startswith("  "))
    flush()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def declaration(header, symbol):
    """The declaration as the header has it, without its body and its comments."""
    start = header.start(symbol.line)
    lines = []
    for at in range(start, len(header.lines)):
        if header.code[at].strip():
            lines.append(header.code[at])
        if at >= max(symbol.line, header.end(start)):
            break
    text = textwrap.dedent("\n".join(lines)).replace("WEFT_EXPORT ", "")
    if symbol.kind != "function":
        return text
    depth = parameters = 0
    for at, char in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        parameters += char == ")" and depth == 0
        if depth or not parameters:
            continue
        initializes = char == ":" and text[at - 1] in " \n" and text[at + 1:at + 2] != ":"
        if char in ";{" or initializes:
            return text[:at].rstrip() + ";"
    return text


def verbatim(header, first, last):
    """Fields and enumerators, with their comments."""
    start, end = header.start(first.line), header.end(header.start(last.line))
    while header.is_comment(start - 1) and header.indent(start - 1) >= header.indent(start):
        start -= 1
    while end + 1 < len(header.lines) and header.is_comment(end + 1) and header.indent(end + 1) > header.indent(start) + 4:
        end += 1
    return textwrap.dedent("\n".join(header.lines[start:end + 1]))


def whole(header, symbol):
    """A declaration to its closing brace: an enum or a concept."""
    start = header.start(symbol.line)
    end = start
    while end < len(header.lines) - 1 and not header.code[end].rstrip().endswith(";"):
        end += 1
    return textwrap.dedent("\n".join(header.lines[start:end + 1]))


def block(text):
    return ["", "```cpp", text, "```", ""]


class HeaderPage:
    def __init__(self, api, header, layer, symbols, pages):
        self.api, self.path, self.layer, self.symbols, self.pages = api, header, layer, symbols, pages
        self.page, self.header = page_of(header), api.header(str(header))
        self.out = []

    def prose(self, comment):
        return prose(comment, self.page, self.pages)

    def text(self):
        contract = self.header.contract
        self.out = [f"# {self.path.name}", *block(f"#include <weft/{self.path}>"),
                    f"Layer: [`weft::{self.layer.name}`]({up(self.page)}{index_of(self.layer)})", "", self.prose(contract), ""]
        self.members(None, "##")
        return "\n".join(self.out)

    def members(self, parent, mark):
        """The symbols of one scope in the order of the source: fields in one block, functions by group."""
        fields, group, key = [], [], None
        nested = []
        for symbol in [*(s for s in self.symbols if s.parent is parent), None]:
            kind = symbol and symbol.kind
            is_field = parent is not None and kind in ("variable", "typedef")
            if fields and not (is_field and self.adjacent(fields[-1], symbol)):
                self.out += block(verbatim(self.header, fields[0], fields[-1]))
                fields = []
            at = symbol and (self.header.group(self.header.start(symbol.line)), is_type(symbol))
            if group and (symbol is None or is_field or at != key):
                self.functions(group, parent, mark)
                group = []
            if symbol is None or kind == "enumvalue":
                continue
            if is_field:
                fields.append(symbol)
            elif is_type(symbol) or kind == "enum":
                if parent is None:
                    self.type(symbol)
                else:
                    nested.append(symbol)
            elif kind == "concept":
                self.entry(mark, symbol.name, [whole(self.header, symbol)], self.own_comment(symbol))
            elif needs_comment(symbol) or self.header.comment(symbol.line):
                group.append(symbol)
                key = at
        for symbol in nested:
            self.type(symbol)

    def adjacent(self, before, symbol):
        """Returns whether only fields and their comments are between two fields."""
        lines = range(before.line + 1, self.header.start(symbol.line))
        return all(not self.header.lines[at].strip() or self.header.is_comment(at) or self.header.indent(at) > self.header.indent(before.line)
                   or self.header.code[at].strip() == "" for at in lines)

    def own_comment(self, symbol):
        return self.header.heading(self.header.start(symbol.line))

    def type(self, symbol):
        name = symbol.qualified
        short = name.removeprefix("weft::")
        title = name.removeprefix(outermost(symbol).scope + "::")
        self.out += ["", f"## {symbol.kind} {escaped(title)} {{ #{anchor(symbol)} }}", "", f"`weft::{short}`", ""]
        comment = self.own_comment(symbol)
        if comment:
            self.out += [self.prose(comment), ""]
        if symbol.kind == "enum":
            self.out += block(whole(self.header, symbol))
        else:
            self.members(symbol, "###")

    def functions(self, group, parent, mark):
        names = list(dict.fromkeys(symbol.name for symbol in group if needs_comment(symbol))) or [group[0].name]
        code = []
        for symbol in group:
            text = declaration(self.header, symbol)
            if symbol.kind == "define":
                text = f"{symbol.name}{symbol.arguments}"
            trailing = " ".join(self.header.own_trailing(start := self.header.start(symbol.line), self.header.end(start)).split())
            if trailing and len(text.splitlines()[-1]) + len(trailing) > 100:
                text = "\n".join(textwrap.wrap(trailing, 90, initial_indent="// ", subsequent_indent="// ")) + "\n" + text
            elif trailing:
                text += f"  // {trailing}"
            code.append(text)
        self.entry(mark, ", ".join(names), code, self.own_comment(group[0]))

    def entry(self, mark, title, code, comment):
        self.out += ["", f"{mark} {escaped(title)}", *block("\n".join(code))]
        if comment:
            self.out += [self.prose(comment), ""]


def anchor(symbol):
    return re.sub(r"\W+", "-", symbol.qualified.removeprefix("weft::").partition("::")[2] or symbol.name)


def index_of(layer):
    return f"api/{layer.folders[0]}/index.md"


def first_sentence(contract):
    paragraph = " ".join(contract.partition("\n\n")[0].split())
    sentence = re.match(r"(.+?[.:])(?= [A-Z(]|$)", paragraph)
    return (sentence[1] if sentence else paragraph).rstrip(":")


def folder_contents(architecture):
    """The contents of the folders, from docs/architecture.md."""
    rows = re.findall(r"^\| ((?:`[\w/]+`(?:, )?)+) \| (.*?) \|", architecture, re.M)
    return {folder: contents for folders, contents in rows for folder in re.findall(r"`([\w/]+)`", folders)}


def pages(api, docs, architecture):
    """(path, Markdown) of each page, and the part of the navigation that lists them."""
    contents = folder_contents(architecture)
    by_file = {}
    for symbol in api.symbols:
        by_file.setdefault(symbol.file, []).append(symbol)
    found, navigation = {}, []
    overview = ["# API reference", "",
                "The public headers by layer. A layer is a component of the installation: `find_package(weft COMPONENTS rpc)` "
                "and `weft::rpc` for the layer `rpc`. A program includes a header as `<weft/FOLDER/FILE.h>`.", "",
                "| layer | headers | contents |", "|---|---|---|"]
    for layer in api.layers:
        index, folders, entries = index_of(layer), {}, [index_of(layer)]
        folder = layer.folders[0]
        about = contents.get(folder) or first_sentence(api.header(f"{folder}/{folder}.h").contract)
        overview.append(f"| [`weft::{layer.name}`]({index.removeprefix('api/')}) | {len(layer.headers)} | "
                        f"{absolute(about, 'api/index.md', docs)} |")
        text = [f"# weft::{layer.name}", "", absolute(about, index, docs), ""]
        for header in layer.headers:
            folders.setdefault(str(header.parent), []).append(header)
        for folder, headers in folders.items():
            text += [f"## {escaped(folder)}", ""]
            if folder != layer.folders[0] and folder in contents:
                text += [absolute(contents[folder], index, docs), ""]
            text += ["| header | contents |", "|---|---|"]
            section = entries if folder == layer.folders[0] else []
            for header in headers:
                page = page_of(header)
                found[page] = HeaderPage(api, header, layer, by_file.get(str(header), []), docs).text()
                summary = inline(first_sentence(api.header(str(header)).contract), index, docs).replace("|", "\\|")
                text.append(f"| [`{header.name}`]({up(index)}{page}) | {summary} |")
                section.append({header.name: page})
            if section is not entries:
                entries.append({folder.removeprefix(layer.folders[0] + "/"): section})
            text.append("")
        found[index] = "\n".join(text)
        navigation.append({layer.name: entries})
    found["api/index.md"] = "\n".join(overview) + "\n"
    return found, ["api/index.md", *navigation]


def absolute(text, page, docs):
    """Text of docs/architecture.md on another page: its links to pages, and the names of pages."""
    return PAGE.sub(lambda name: f"[{name[0]}]({up(page)}{name[0]})" if name[0] in docs else name[0], text.replace("`docs/", "docs/").replace(".md`", ".md"))


def type_links(api):
    """For names of types that one public type has: the page and its anchor."""
    found, twice = {}, set()
    for symbol in api.symbols:
        if (is_type(symbol) or symbol.kind == "enum") and "<" not in symbol.qualified and symbol.parent is None:
            if symbol.name in found:
                twice.add(symbol.name)
            found[symbol.name] = f"api/{symbol.file.removesuffix('.h')}.html#{anchor(symbol)}"
    return {name: link for name, link in found.items() if name not in twice}
