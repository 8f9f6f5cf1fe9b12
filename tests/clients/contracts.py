#!/usr/bin/env python3
"""Checks the contracts as documents: that they are what they claim to be, whole, and made of today's sources.

    contracts.py FOLDER

The first argument is the folder `contracts`. Prints what is wrong, one line each.
"""
import json
import pathlib
import subprocess
import sys

from jsonschema import Draft7Validator, Draft202012Validator, SchemaError
from openapi_spec_validator import OpenAPIV31SpecValidator

FOLDER = pathlib.Path(sys.argv[1])
ASYNCAPI = pathlib.Path(__file__).parent / "node_modules/@asyncapi/specs/schemas/3.0.0.json"


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def refs(value, at="#"):
    """All references with their places."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield at, value["$ref"]
        for key, item in value.items():
            yield from refs(item, f"{at}/{key}")
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield from refs(item, f"{at}/{n}")


def resolves(document, target):
    here = document
    for part in target.removeprefix("#/").split("/"):
        here = here.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
    return target.startswith("#/") and here is not None


def wrongs():
    bundle = subprocess.run([sys.executable, FOLDER / "bundle", "--check"], capture_output=True, text=True)
    if bundle.returncode:
        yield bundle.stderr.strip()
    openapi, asyncapi = load(FOLDER / "openapi.json"), load(FOLDER / "asyncapi.json")
    for error in OpenAPIV31SpecValidator(openapi).iter_errors():
        yield f"openapi.json {'/'.join(map(str, error.absolute_path))}: {error.message}"
    for error in Draft7Validator(load(ASYNCAPI)).iter_errors(asyncapi):
        yield f"asyncapi.json {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    for name, document in (("openapi.json", openapi), ("asyncapi.json", asyncapi)):
        for at, target in refs(document):
            if not resolves(document, target):
                yield f"{name} {at}: {target} is nowhere"
    for name, schema in openapi["components"]["schemas"].items():
        yield from unsound(f"openapi.json {name}", schema)
    used = {payload["$ref"].rpartition("/")[2] for payload in (m["payload"] for m in asyncapi["components"]["messages"].values())}
    for path in sorted((FOLDER / "schemas").rglob("*.json")):
        parts = path.relative_to(FOLDER / "schemas").with_suffix("").parts
        schema = load(path)
        yield from unsound(path.name, schema)
        if schema.get("$schema") != "https://json-schema.org/draft/2020-12/schema" or not schema.get("title") or not schema.get("description"):
            yield f"{path.name}: no dialect, title or description"
        if parts[0] != "types" and parts[1] != "patches" and ".".join(parts) not in used:
            yield f"{path.name}: asyncapi.yaml has no message for it"


def unsound(name, schema):
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        yield f"{name}: {error.json_path}: {error.message}"


found = list(wrongs())
print("\n".join(found) or "sound")
sys.exit(bool(found))
