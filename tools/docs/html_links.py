"""Links and anchors of a folder of HTML pages: each leads to a page and an element that exist."""
import html.parser
import pathlib
import re
import urllib.parse

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if attributes.get(LOADS.get(tag)) and attributes.get("rel") != "canonical":
            self.loads.append(attributes[LOADS[tag]])


def problems_of_site(site):
    pages = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for link in page.links + page.loads:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.loads and url.scheme != "data":
                    problems.append(f"{where}: loads {link}: a page of the site loads nothing from elsewhere")
                continue
            if str(where) == "404.html" and url.path.startswith("/"):
                continue  # of the root of a server
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                problems.append(f"{where}: {link}: no such file in the site")
            elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].ids:
                problems.append(f"{where}: {link}: no such anchor")
    for path in site.rglob("*.css"):
        for url in re.findall(r"""(?:url\(["']?|@import ["'])((?:https?:)?//[^"')]+)""", path.read_text()):
            problems.append(f"{path.relative_to(site)}: loads {url}: the site loads nothing from elsewhere")
    return sorted(set(problems))
