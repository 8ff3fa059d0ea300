#!/usr/bin/env python3
"""lint_manifests.py - check files that Kubernetes and Grafana read against the schemas of these programs.

usage: lint_manifests.py kubernetes FILE...      manifests in YAML
       lint_manifests.py grafana FILE            a dashboard in JSON

kubernetes: each document is valid for the oldest and the newest version of Kubernetes that kubernetes-validate knows,
            and has no other fields. gpoold accepts the configuration in a ConfigMap.
grafana:    the types of Grafana's Foundation SDK, which Grafana generates from its schema, can represent each field of
            the dashboard, with a value of the field's type.

Both packages are in tools/build/lint.txt, and run without a network. Status 1: a file has an error."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPOOLD = ROOT / "build/gpoold"

# ---- Kubernetes ----


def kubernetes_versions() -> list[str]:
    """Return the oldest and the newest version that the package has schemas of."""
    import kubernetes_validate

    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    known = {tuple(map(int, path.name[1:].split("-")[0].split("."))) for path in schemas.glob("v*-strict")}
    return [".".join(map(str, version[:2])) for version in (min(known), max(known))]


def configuration_errors(name: str, document: dict) -> list[str]:
    """Let gpoold check the files of a ConfigMap."""
    errors = []
    for key, text in (document.get("data") or {}).items():
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(text)
            file.flush()
            checked = subprocess.run(
                [GPOOLD, "--check-config=file", "--config", file.name], stderr=subprocess.PIPE, text=True
            )
        if checked.returncode:
            errors.append(f"{name}: {key}: {checked.stderr.strip()}")
    return errors


def kubernetes(names: list[str]) -> list[str]:
    import kubernetes_validate
    import yaml

    errors, versions, count = [], kubernetes_versions(), 0
    for name in names:
        for document in yaml.safe_load_all(Path(name).read_text()):
            count += 1
            for version in versions:
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    place = ".".join(map(str, error.path))
                    errors.append(f"{name}: {document.get('kind')}, Kubernetes {version}: {place}: {error.message}")
                except kubernetes_validate.SchemaNotFoundError:
                    kind = f"{document.get('apiVersion')} {document.get('kind')}"
                    errors.append(f"{name}: Kubernetes {version} does not know {kind}")
            if document.get("kind") == "ConfigMap":
                errors += configuration_errors(name, document)
    print(f"{count} documents, Kubernetes {' and '.join(versions)}")
    return errors


# ---- Grafana ----


def is_of(value: object, hint: object) -> bool:
    """Return True if a value has the type of an annotation. Objects check their own fields."""
    if isinstance(value, enum.Enum):
        value = value.value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or hint is object:
        return True
    if origin is typing.Union:
        return any(is_of(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return any(value == argument and type(value) is type(argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(is_of(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(item, arguments[1]) for item in value.values())
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint in (int, str, bool):
        return type(value) is hint
    return isinstance(value, hint) if isinstance(hint, type) else True


def type_errors(value: object, place: str) -> list[str]:
    """Return the fields of objects of the SDK whose values do not have the declared type."""
    if isinstance(value, dict):
        return [error for key, item in value.items() for error in type_errors(item, f"{place}.{key}")]
    if isinstance(value, list):
        return [error for i, item in enumerate(value) for error in type_errors(item, f"{place}[{i}]")]
    if not type(value).__module__.startswith("grafana_foundation_sdk") or isinstance(value, enum.Enum):
        return []
    if type(value).__name__ == "UnknownDataquery":
        return [f"{place}: a query of an unknown kind of data source"]
    errors = []
    for field, hint in typing.get_type_hints(type(value)).items():
        item = getattr(value, field)
        if item is not None and not is_of(item, hint):
            errors.append(f"{place}.{field}: {item!r} is not {hint}")
        errors += type_errors(item, f"{place}.{field}")
    return errors


def lost_fields(given: object, kept: object, place: str) -> list[str]:
    """Return the fields of a document that are missing or different in what the SDK has made of it."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            error
            for key, item in given.items()
            for error in (
                lost_fields(item, kept[key], f"{place}.{key}")
                if key in kept or item is None
                else [f"{place}.{key}: not in the schema"]
            )
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [error for i, item in enumerate(given) for error in lost_fields(item, kept[i], f"{place}[{i}]")]
    return [] if given == kept else [f"{place}: {given!r} is read as {kept!r}"]


def grafana(names: list[str]) -> list[str]:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.cog.runtime import Runtime
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    known = Runtime()
    given = json.loads(Path(names[0]).read_text())
    try:
        dashboard = Dashboard.from_json(given)
        kept = json.loads(JSONEncoder().encode(dashboard))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{names[0]}: cannot be read: {type(error).__name__}: {error}"]
    print(f"{len(given.get('panels', []))} panels")
    if not given.get("panels"):
        return [f"{names[0]}: no panels"]
    found = type_errors(dashboard, "dashboard") + lost_fields(given, kept, "dashboard")
    for panel in given["panels"]:
        if known.panelcfg_config(panel["type"]) is None:
            found.append(f"panel '{panel['title']}': there is no type '{panel['type']}'")
    return [f"{names[0]}: {error}" for error in found]


def main() -> int:
    checks = {"kubernetes": kubernetes, "grafana": grafana}
    if len(sys.argv) < 3 or sys.argv[1] not in checks:
        print(__doc__, file=sys.stderr)
        return 2
    errors = checks[sys.argv[1]](sys.argv[2:])
    for error in errors:
        print(f"FAIL {error}")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
