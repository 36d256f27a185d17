"""The pages of the site that `make docs` builds: every document, a page for each mechanism, and the API by its public names.

`pages` and `navigation` need nothing but the repository; mkdocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from regard.mechanisms import MECHANISMS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "regard"
LIVE = ROOT / "runs" / "demo" / "model.html"
"""A page with a model inside; the front page shows it where it is there."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)\s#]*)(#[^)\s]+)?\)")
SLUGS = {mechanism.slug: mechanism for mechanism in MECHANISMS}
SHOWN = (".svg", ".png", ".html", ".css")
LIVE_MODEL = """
## Live model

<details>
<summary>Type a sentence and see what the model attends to: it runs in this page, nothing is sent anywhere</summary>
<iframe src="model.html" title="A model and its attention" loading="lazy" style="width: 100%; height: 44rem; border: 0"></iframe>
</details>

[Open it alone](model.html), or save the file: it needs no server and no network.
"""


def slug(heading: str, _separator: str = "-") -> str:
    """Return the anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def documents() -> dict[Path, str]:
    """Return every document with its place in the site."""
    placed = {ROOT / "README.md": "index.md", DOCS / "index.md": "documentation.md"}
    placed |= {ROOT / f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")}
    # A report has a page of its own beside it, whose name is kept.
    found = {path: path.relative_to(DOCS).as_posix().replace("/report.md", ".md") for path in sorted(DOCS.rglob("*.md"))}
    return found | placed


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a document's prose and leave its blocks of code as they are."""
    return "".join(part if part.startswith("```") else change(part) for part in FENCE.split(text))


def for_site(text: str, document: Path, page: str) -> str:
    """Point a document's links to the pages of the site, and leave out its comments; a link to what the site has not is its text."""
    placed = documents()

    def link(match: re.Match[str]) -> str:
        words, path, anchor = match[1], match[2], match[3] or ""
        target = (document.parent / path).resolve() if path else document
        if target == DOCS / "mechanisms.md" and anchor[1:] in SLUGS:
            there, anchor = f"mechanisms/{anchor[1:]}.md", ""
        elif target in placed:
            there = placed[target]
        elif target.is_relative_to(DOCS) and target.suffix in SHOWN:
            there = target.relative_to(DOCS).as_posix()
        else:
            return words
        return f"[{words}]({os.path.relpath(there, Path(page).parent)}{anchor})"

    return outside_code(text, lambda part: LINK.sub(link, re.sub(r"^<!--.*?-->$", "", part, flags=re.MULTILINE)))


def public_names() -> dict[str, list[str]]:
    """Return the public names of the package, of each of its packages, and of each integration, as `__all__` has them."""
    files = [SOURCE / "__init__.py", *sorted(SOURCE.glob("*/__init__.py")), *sorted((SOURCE / "integrations").glob("[!_]*.py"))]
    found = {}
    for path in files:
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and isinstance(node.value, ast.List):
                found[module] = sorted(ast.literal_eval(node.value))
    return {module: names for module, names in found.items() if names}


def api_pages(names: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Give a page for each module, filled by mkdocstrings, and one that lists them."""
    yield "api/index.md", "# API\n\n" + "\n".join(f"- [`{module}`]({module}.md): {len(names[module])} names" for module in names)
    for module in names:
        own = [name for name in names[module] if f"{module}.{name}" not in names]
        yield f"api/{module}.md", f"# {module}\n\n" + "\n\n".join(f"::: {module}.{name}" for name in own)


def with_links_to_api(where: str, names: dict[str, list[str]]) -> str:
    """Link what a mechanism is called in the library, such as `Areas(max_area), ops.area_attention`, to the API."""
    linked = []
    for call in re.split(r", (?![^(]*\))", where):
        name = call.partition("(")[0]
        module = (
            next(module for module in ("regard.attention", "regard.models", "regard") if name.rpartition(".")[2] in names[module])
            if ("." not in name)
            else f"regard.{name.rpartition('.')[0]}"
        )
        linked.append(f"[`{call}`][{module}.{name.rpartition('.')[2]}]")
    return ", ".join(linked)


def mechanism_pages(names: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Cut docs/mechanisms.md into a page for each mechanism and one that leads to them."""
    document = DOCS / "mechanisms.md"
    overview = []
    for part in re.split(r"^(?=##+ )", document.read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        mechanism = SLUGS.get(slug(heading.lstrip("# "))) if heading.startswith("### ") else None
        if mechanism is None:
            overview.append(for_site(part, document, "mechanisms.md"))
            continue
        page = f"mechanisms/{mechanism.slug}.md"
        overview.append(f"- [{mechanism.name}]({page}): {mechanism.source}\n")
        where = f"- in the library: {with_links_to_api(mechanism.where, names)}"
        text = re.sub(r"^- in the library: .*$", lambda _, line=where: line, for_site(body, document, page), flags=re.MULTILINE)
        yield page, f"# {mechanism.name.capitalize()}\n{text}"
    yield "mechanisms.md", "".join(overview)


def pages() -> dict[str, str]:
    """Return the text of every page of the site by its place."""
    names = public_names()
    texts = {page: for_site(path.read_text(encoding="utf-8"), path, page) for path, page in documents().items()}
    if LIVE.is_file():
        texts["index.md"] = re.sub(r"(?=^## )", LIVE_MODEL.lstrip() + "\n", texts["index.md"], count=1, flags=re.MULTILINE)
    return texts | dict(mechanism_pages(names)) | dict(api_pages(names))


def navigation(texts: dict[str, str]) -> list[Any]:
    """Return the menu: the tables of docs/index.md, the mechanisms by the groups of their document, and the API."""
    menu: dict[str, list[Any]] = {"Guides": [], "Mechanisms": ["mechanisms.md"], "Reference": [], "Evidence": []}
    section, group = "", menu["Mechanisms"]
    for heading, title, page in re.findall(r"^## (.+)$|\| \[([^\]]+)\]\(([^)#]+)\) \|$", texts["documentation.md"], re.MULTILINE):
        section = heading or section
        if not heading and page != "mechanisms.md":
            menu[section].append({title: page})
    for heading, title, page in re.findall(r"^## (.+)$|^- \[(.+)\]\((mechanisms/.+)\):", texts["mechanisms.md"], re.MULTILINE):
        if heading:
            group = []
            menu["Mechanisms"].append({heading: group})
        else:
            group.append({title.capitalize(): page})
    menu["Mechanisms"] = [entry for entry in menu["Mechanisms"] if isinstance(entry, str) or all(entry.values())]
    api = [page for page in texts if page.startswith("api/")]
    return [{"Home": "index.md"}, {"Guides": ["documentation.md", *menu.pop("Guides")]}, *({k: v} for k, v in menu.items()), {"API": api}]


def on_files(files: Any, config: Any) -> Any:
    """Give mkdocs the pages, and of what lies in docs only the pictures and reports."""
    from mkdocs.structure.files import File

    for file in list(files):
        if Path(file.src_uri).suffix not in SHOWN and not file.src_uri.startswith("assets/"):  # assets: the theme's
            files.remove(file)
    texts = pages()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    if LIVE.is_file():
        files.append(File.generated(config, "model.html", abs_src_path=str(LIVE)))
    config.nav = navigation(texts)
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug}
    return files
