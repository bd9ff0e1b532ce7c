"""The configuration that a stored plan keeps, typed again; also one that earlier code wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from hpcbench.config.fault import Fault
from hpcbench.config.schema import Config, Hardware, Launch, Measure, Output
from hpcbench.config.section import Section

AnySection = TypeVar("AnySection", bound=Section)


def stored_config(stored: Mapping[str, Any]) -> Config:
    """Return the configuration from its plain JSON values.

    A configuration of earlier code is read as far as it is known: unknown keys are left out, and
    missing keys have their defaults. It then has no blocks, because the plan has the cases.
    """
    try:
        return Config.model_validate_json(json.dumps(stored))
    except ValidationError:
        return Config.model_construct(
            name=stored.get("name", "default"), notes=tuple(stored.get("notes", ())),
            require=tuple(stored.get("require", ())), benchmarks=(),
            fault=tuple(_known(Fault, fault) for fault in stored.get("fault", ())),
            hardware=_known(Hardware, stored.get("hardware", {})),
            launch=_known(Launch, stored.get("launch", {})),
            measure=_known(Measure, stored.get("measure", {})),
            output=_known(Output, stored.get("output", {})))


def _known(section: type[AnySection], stored: Mapping[str, Any]) -> AnySection:
    """Return a section from those of its stored keys that this version reads."""
    try:
        return section.model_validate_json(json.dumps(stored))
    except ValidationError as error:
        unread = {problem["loc"][0] for problem in error.errors() if problem["loc"]}
        known = {key: value for key, value in stored.items() if key not in unread}
        return section.model_validate_json(json.dumps(known))
