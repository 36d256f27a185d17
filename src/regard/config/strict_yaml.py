"""Safe parsing of untrusted YAML: YAML 1.2, no duplicate keys, no code, limited references."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from regard.errors import shown

# Errors of the parser: its own, invalid dates, endless nesting.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# Tag of merge keys, which may occur several times in a mapping.
MERGE = "tag:yaml.org,2002:merge"
# Maximum bytes of a file, and of entries with references expanded; settings need 1 % of both.
MAX_BYTES, MAX_ENTRIES = 65_536, 10_000
# Maximum references within a file: settings have a handful.
MAX_ALIASES = 100

# The core schema of YAML 1.2, and `_` between digits. PyYAML's own is that of YAML 1.1, in which `yes` is a boolean, `010` is 8, `1:30` is
# 90 and `1e-3` a string.
_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)
_RESOLVERS = {
    first: [(_TAG + name, re.compile(rf"(?:{pattern})\Z")) for name, pattern, firsts in _SCALARS if first in firsts]
    for _, _, every in _SCALARS
    for first in every
}


class _Dumper(yaml.SafeDumper):
    """A writer that quotes strings which the parser would read as another type."""

    yaml_implicit_resolvers = _RESOLVERS


class _Loader(yaml.SafeLoader):
    """A loader without duplicate keys, of which PyYAML silently takes the last, and with limited references.

    A file of 500 bytes with nested references may expand beyond memory, so references and merged entries are counted.
    """

    yaml_implicit_resolvers = _RESOLVERS
    aliases = 0

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.entries: dict[int, int] = {}  # of each mapping with merged parts, those that it overrides included

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, 8) if text.startswith("0o") else int(text, 16) if text.startswith("0x") else int(text)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise ComposerError(None, None, f"more than {MAX_ALIASES} references to other parts", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: Any) -> None:
        # Not PyYAML's: 6.0.4 takes an overridden value where both keys are the same object, as one-letter strings are.
        own = [pair for pair in node.value if pair[0].tag != MERGE]
        parts = [value for key, value in node.value if key.tag == MERGE]
        node.value = own
        entries = len(own)
        merged: dict[Any, Any] = {}  # the first of several mappings wins
        for part in (part for value in parts for part in (value.value if isinstance(value, yaml.SequenceNode) else [value])):
            if not isinstance(part, yaml.MappingNode):
                raise ConstructorError("while constructing a mapping", node.start_mark, "expected mappings to merge", part.start_mark)
            self.flatten_mapping(part)
            entries += self.entries.get(id(part), len(part.value))
            for pair in part.value:
                merged.setdefault(_identity(pair[0]), pair)
        for key, _ in own:
            merged.pop(_identity(key), None)
        node.value = [*merged.values(), *own]
        if parts:
            self.entries[id(node)] = entries
        if entries > MAX_ENTRIES:
            raise ComposerError(None, None, f"more than {MAX_ENTRIES:,} merged keys", node.start_mark)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    raise ComposerError(None, None, f"duplicate key {shown(key.value)}", key.start_mark)
                seen.add(key.value)
        return node


def _identity(key: Any) -> Any:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


_Loader.add_constructor(_TAG + "int", _Loader.construct_yaml_int)


def parse_yaml(text: str) -> Any:
    """Parse YAML; may raise `NOT_YAML`.

    Example:
        >>> parse_yaml("{betas: [0.9, 0.98]}")
        {'betas': [0.9, 0.98]}
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def dump_yaml(value: Any, *, flow: bool | None = False) -> str:
    r"""Write YAML that `parse_yaml` reads as the same values.

    Args:
        value: mappings, lists, strings, numbers, booleans and None.
        flow: True: on one line, `{a: 1}`; False: one line per entry.

    Example:
        >>> dump_yaml({"name": "1e3", "rate": 1e-3})
        "name: '1e3'\nrate: 0.001\n"
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow)
