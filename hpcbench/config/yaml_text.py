"""A sweep file as YAML that people read: comments, lists of names on one line, short numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import yaml

_WIDTH = 98


def commented_yaml(
    content: Mapping[str, Any], remarks: Iterable[str], comments: Mapping[str, Mapping[str, str]],
) -> str:
    """Return YAML, remarks at the top, a key's ``comments`` before the keys in its mapping."""
    lines = [line for remark in remarks for line in _comment(remark)]
    for key, value in content.items():
        if key in comments and value:
            lines.append(f"{key}:")
            for inner, item in value.items():
                inside = [*_comment(comments[key].get(inner, "")), *_dumped({inner: item})]
                lines += [f"  {line}" for line in inside]
        else:
            lines += _dumped({key: value})
    return "".join(f"{line}\n" for line in lines)


def _comment(text: str) -> list[str]:
    """Return the lines of a comment; a character that cannot be printed could end one early."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return [f"# {line}" for line in wrap(printable, _WIDTH - 2)]


def _dumped(content: Mapping[str, Any]) -> list[str]:
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=False,
                     width=_WIDTH, allow_unicode=True)
    return text.rstrip("\n").split("\n")  # not splitlines: it divides at U+2028 and others, too


class _Dumper(yaml.SafeDumper):
    """YAML's safe dumper, with lists of plain words on one line and other lists indented."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        plain = not any(isinstance(item, (list, dict)) or " " in str(item) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)

    def represent_float(self, data: float) -> Any:
        """Return the node of a number: 989.4e+12 instead of 989400000000000.0."""
        short = f"{data / 1e12}e+12"
        if 1e9 <= abs(data) < 1e16 and float(short) == data:
            return self.represent_scalar("tag:yaml.org,2002:float", short)
        return super().represent_float(data)

    def represent_str(self, data: str) -> Any:
        """Return the node of a text; within quotes what cannot be printed is escaped."""
        if data.isprintable():
            return super().represent_str(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"')

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out: an alias is hard to read."""
        return True


_Dumper.add_representer(float, _Dumper.represent_float)
_Dumper.add_representer(str, _Dumper.represent_str)
