"""The settings for readers: the JSON schema of ``[tool.armbuild]``, and the reference on the site."""

from __future__ import annotations

from typing import Any

from armbuild.wheel.settings import ALL, GROUPS, Setting


def schema(settings: tuple[Setting, ...] = ALL) -> dict[str, Any]:
    """Return the JSON schema of ``[tool.armbuild]``."""
    properties: dict[str, Any] = {}
    for setting in settings:
        properties[setting.key] = {**setting.json_type(), "description": setting.about.help}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "[tool.armbuild]",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def reference(settings: tuple[Setting, ...] = ALL) -> str:
    """Return the reference in Markdown, a table for each group."""
    lines = []
    for group in GROUPS:
        lines += [f"### {group}", "", "| option | `[tool.armbuild]` | meaning |", "| --- | --- | --- |"]
        for setting in settings:
            if setting.about.group == group:
                lines.append(f"| `{setting.option}` | `{_toml_line(setting)}` | {setting.about.help} |")
        lines.append("")
    return "\n".join(lines)


def _toml_line(setting: Setting) -> str:
    example = setting.about.example
    if setting.type is bool:
        return (
            f"{setting.key} = {str(not setting.default).lower() if setting.default is not None else example}"
        )
    return f'{setting.key} = ["{example}"]' if setting.type is tuple else f'{setting.key} = "{example}"'
