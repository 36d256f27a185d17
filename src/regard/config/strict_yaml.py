"""YAML that nobody vouches for: no key twice, nothing that runs code, and little that refers to much."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError

from regard.errors import shown

# What the reader raises: its own error, a date that is none, lists within lists without end.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# A key that takes in the keys of another part; there may be several.
MERGE = "tag:yaml.org,2002:merge"
# Bytes of a file, and keys and values in it when what it refers to is written out; settings have a hundredth of both.
MAX_BYTES, MAX_ENTRIES = 65_536, 10_000
# References to other parts of a file: settings have a handful.
MAX_ALIASES = 100


class _Loader(yaml.SafeLoader):
    """YAML in which no key comes twice, for PyYAML alone would take the last one and say nothing; and in which little refers to much.

    A file of 500 bytes whose parts refer to each other may stand for more values than memory holds. References are counted, and so are the
    entries of what is merged.
    """

    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise ComposerError(None, None, f"more than {MAX_ALIASES} references to other parts", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_ENTRIES:
            raise ComposerError(None, None, f"more than {MAX_ENTRIES:,} merged keys", node.start_mark)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    raise ComposerError(None, None, f"the key {shown(key.value)} comes twice", key.start_mark)
                seen.add(key.value)
        return node


def parse_yaml(text: str) -> Any:
    """Parse YAML; what it may raise is `NOT_YAML`.

    Example:
        >>> parse_yaml("{betas: [0.9, 0.98]}")
        {'betas': [0.9, 0.98]}
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
