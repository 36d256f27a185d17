"""Translation memories (TMX): sentence pairs of two languages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.parsers import expat

from regard.data.language_tags import OF_A_RUN, is_of, several_scripts
from regard.data.lines import stream_chunks
from regard.data.tables import spelled
from regard.errors import ConfigError, DataError, counted, listed, shown
from regard.progress import message

# Elements in a segment that hold codes of the document's format instead of text.
CODES = frozenset(("bpt", "ept", "ph", "it", "ut"))
SPACES = re.compile(r"[ \t\r\n]+")  # others, such as no-break spaces, are text
Languages = Sequence[str]
"""Source and target language, such as ("en", "pt-BR")."""


def is_tmx(path: str | Path) -> bool:
    """Return whether a file's name is that of a translation memory.

    Example:
        >>> is_tmx("memory.tmx.gz"), is_tmx("memory.tsv")
        (True, False)
    """
    return str(path).lower().removesuffix(".gz").endswith(".tmx")


def check_languages(languages: Languages | None) -> None:
    """Check that languages are two different names.

    Raises:
        ConfigError: they are not.

    Example:
        >>> check_languages(("en", "de"))
    """
    if languages is None:
        return
    several = isinstance(languages, Sequence) and not isinstance(languages, str)
    if not several or len(languages) != 2 or not all(isinstance(name, str) and name.strip() for name in languages):
        raise ConfigError(f"languages: expected two names, of source and target, found {shown(languages)}")
    if spelled(languages[0]) == spelled(languages[1]):
        raise ConfigError(f"data.languages: [{', '.join(languages)}], expected two different ones")


def stream_tmx(path: str | Path, languages: Languages | None = None) -> Iterator[tuple[str, str]]:
    """Yield the (source, target) pairs of a translation memory, without holding it in memory.

    Tags inside a segment are left out, and white space becomes a space. A unit that lacks one of the two languages is skipped. "en" finds
    "en-US", too, and "zh-Hans" finds "zh-CN". Of several texts of a language the first counts. A message says how many units and texts were
    left out.

    Args:
        path: a `.tmx` file of version 1.1 to 1.4, or `.tmx.gz`.
        languages: source and target; None: the header's source language, and the only other one.

    Raises:
        ConfigError: `languages` are not two names.
        DataError: the file is not such a file, declares entities or uses those of its DOCTYPE, or has no unit in the two languages; without
            `languages`, it has more than two, or its header names a source language that it has not; it has a language in two scripts, such
            as zh-Hans and zh-TW. The message names the file and, where known, the line.

    Example:
        >>> import tempfile
        >>> text = ('<tmx><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>a <hi>dog</hi></seg></tuv>'
        ...         '<tuv xml:lang="de"><seg>ein Hund</seg></tuv></tu></body></tmx>')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tmx").write_text(text)
        ...     list(stream_tmx(Path(folder, "a.tmx"))), list(stream_tmx(Path(folder, "a.tmx"), ("de", "en")))
        ([('a dog', 'ein Hund')], [('ein Hund', 'a dog')])
    """
    check_languages(languages)
    reader, found, skipped, others = _Reader(path), 0, 0, 0
    pair = None if languages is None else (spelled(languages[0]), spelled(languages[1]))
    for unit in reader.units():
        pair = pair or _pair_of(path, reader.source, unit)
        if languages is None and pair is not None and not all(any(is_of(name, side) for side in pair) for name in unit):
            raise _choose_two(path, reader.languages)
        sides = None if pair is None else [_texts(reader, unit, name, other) for name, other in (pair, pair[::-1])]
        if sides and all(sides):
            found += 1
            others += sum(map(len, sides)) - 2
            yield sides[0][0], sides[1][0]
        else:
            skipped += 1
    others += reader.repeated
    if found and (skipped or others):
        left = [counted(skipped, "unit without a text in both languages", "units without a text in both languages")] if skipped else []
        left += [counted(others, "further text of a unit in one language", "further texts of a unit in one language")] if others else []
        message(f"{path}: left out {' and '.join(left)}")
    if not found:
        names = listed(sorted(reader.languages)) or "none"
        raise DataError(f"{path}: no unit with a text in {' and '.join(pair) if pair else 'two languages'}; its languages are: {names}")


def _pair_of(path: str | Path, source: str, unit: Mapping[str, str]) -> tuple[str, str] | None:
    # The languages of a file that nobody chose; None for a unit of one.
    if len(unit) < 2:
        return None
    first = next((name for name in unit if is_of(name, source.split("-")[0])), "")
    if source in ("", "*all*"):  # the header names none
        first = next(iter(unit))
    others = [name for name in unit if name != first]
    if len(others) > 1:
        raise _choose_two(path, unit, "" if first else f"; its header names {source} as the source")
    # Without countries, which may differ from unit to unit, unless only they tell the two apart.
    one, other = (name.split("-")[0] for name in (first, others[0]))
    return (one, other) if one != other else (first, others[0])


def _choose_two(path: str | Path, found: Iterable[str], more: str = "") -> DataError:
    return DataError(f"{path}: has the languages {listed(sorted(found))}{more}; choose two: data.languages=[SOURCE, TARGET]{OF_A_RUN}")


def _texts(reader: _Reader, unit: Mapping[str, str], language: str, other: str) -> list[str]:
    # Those of a language, its countries and scripts that are not the other side, its own first.
    def is_side(name: str) -> bool:
        return name == language or (is_of(name, language) and name != other)

    found = sorted(filter(is_side, reader.languages))
    if several_scripts(found):
        raise DataError(f"{reader.path}: has {listed(found)}, which are two scripts; name one: data.languages=[SOURCE, TARGET]{OF_A_RUN}")
    own = {name: text for name, text in unit.items() if text and is_side(name)}
    return sorted(own.values(), key=lambda text: text != own.get(language))


class _Reader:
    """Reads units: texts by language."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.source = ""
        self.languages: set[str] = set()
        self.repeated = 0
        self._ready: list[dict[str, str]] = []
        self._unit: dict[str, str] = {}
        self._language = ""
        self._text: list[str] | None = None
        self._depth = self._codes = 0
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.EntityDeclHandler = self._refuse
        parser.SkippedEntityHandler = self._unknown

    def units(self) -> Iterator[dict[str, str]]:
        try:
            for chunk in stream_chunks(self.path):
                self._parser.Parse(chunk, False)
                yield from self._take()
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise DataError(f"{self.path}, line {error.lineno}: not XML ({expat.ErrorString(error.code)})") from error
        except DataError:
            raise
        except (LookupError, ValueError) as error:  # of the encoding that the file names
            raise DataError(f"{self.path}: not read ({error}); write it as UTF-8") from error
        yield from self._take()

    def _take(self) -> list[dict[str, str]]:
        ready, self._ready = self._ready, []
        return ready

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if not self._depth and name != "tmx":
            raise DataError(f"{self.path}, line {self._parser.CurrentLineNumber}: expected <tmx>, found <{shown(name)}>")
        self._depth += 1
        if name == "header":
            self.source = spelled(attributes.get("srclang", ""))
        elif name == "tu":
            self._unit = {}
        elif name == "tuv":
            self._language = spelled(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif name == "seg":
            self._text, self._codes = [], 0
        elif name in CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "seg" and self._text is not None:
            if self._language:
                self.repeated += self._language in self._unit
                text = SPACES.sub(" ", "".join(self._text)).strip(" ")
                self._unit.setdefault(self._language, text if text.strip() else "")
                self.languages.add(self._language)
            self._text = None
        elif name == "tu":
            self._ready.append(self._unit)
        elif name in CODES:
            self._codes -= 1

    def _data(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def _unknown(self, name: str, is_parameter: bool) -> None:
        # Beside a DOCTYPE the parser leaves them out without an error.
        if not is_parameter:
            where = f"{self.path}, line {self._parser.CurrentLineNumber}"
            raise DataError(f"{where}: &{name}; is no character of XML; write the character itself")

    def _refuse(self, *_: object) -> None:
        raise DataError(f"{self.path}, line {self._parser.CurrentLineNumber}: declares an entity, which is not read")
