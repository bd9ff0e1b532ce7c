"""YAML: texts become values, as version 1.2 reads numbers, and values become texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import wrap
from types import MappingProxyType
from typing import Any

import yaml

from hpcbench.texts import as_field, printable

_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS: Mapping[str, re.Pattern[str]] = MappingProxyType({
    _INT: re.compile(r"[-+]?(?:0|[1-9][\d_]*|0x[\da-fA-F_]+|0b[01_]+)"),
    _FLOAT: re.compile(r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
                       r"|\.\d[\d_]*(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)")})
"""What is a number. YAML 1.1, which yaml reads, has 1:30 as 90 and 010 as 8, and 1e9 as text."""


def from_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises ValueError, with the place, where it is none."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(_problem(error)) from None


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    why = getattr(error, "problem", None) or "it cannot be read"
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {why}"


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of its pairs. Raises ValueError for a key that is given twice."""
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f'key "{twice[0]}" is given twice in one mapping; keep one')
    return dict(pairs)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which would else let the last of two equal keys win."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (of the base class, without its numbers)
        first: [(tag, form) for tag, form in forms if tag not in _NUMBERS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [str(key.value) for key, _ in node.value]
        unique([(key, None) for key in keys])
        return super().construct_mapping(node, deep)


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
    """Return the lines of a comment: a line end within it could end it early."""
    return [f"# {line}" for line in wrap(as_field(text), _WIDTH - 2)]


def _dumped(content: Mapping[str, Any]) -> list[str]:
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=False,
                     width=_WIDTH, allow_unicode=True)
    text = printable(text)  # YAML's own escapes: what is hidden stands within quotes only
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
        if data.isprintable() and as_field(data) == data:
            return super().represent_str(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"')

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out: an alias is hard to read."""
        return True


for _tag, _form in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_form.pattern})$"), [*"-+.0123456789"])
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_form.pattern})$"), [*"-+.0123456789"])
_Dumper.add_representer(float, _Dumper.represent_float)
_Dumper.add_representer(str, _Dumper.represent_str)
