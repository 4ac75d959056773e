"""The communication of modules as a table and as JSON."""

import json
from typing import Any

from shardwise._C import OpRecord

# Operators that change no values. Only the highest noise level shows them.
TRIVIAL = {"alias", "as_strided", "detach", "t", "to", "_to_copy", "transpose", "view"}

Modules = dict[str, dict[str, Any]]


def write_table(modules: Modules, noise_level: int) -> str:
    """A line per module, indented by its depth, and below it its parameters, collectives and operators."""
    lines: list[str] = []
    for path, told in modules.items():
        indent = "    " * told["depth"]
        lines.append(f"{indent}{path}")
        if noise_level > 0:
            lines += [f"{indent}*module type: {told['module_type']}"] if "module_type" in told else []
            lines += [f"{indent}*Parameter List"] if "parameters" in told else []
            lines += [f"{indent} *{name}: {placements}" for name, placements in told.get("parameters", {}).items()]
        for direction in ("forward", "backward"):
            collectives = told["collectives"].get(direction, {})
            operations = _operations(told["operations"][direction], noise_level)
            if not collectives and not operations:
                continue
            lines.append(f"{indent}  {direction.upper()} PASS")
            lines += [f"{indent}    *{kind}: {count}" for kind, count in collectives.items()]
            for record in operations:
                lines.append(f"{indent}    **{record.op}")
                lines.append(f"{indent}      given: {', '.join(record.given)}")
                lines.append(f"{indent}      results: {', '.join(record.results)}")
    return "\n".join(lines) + "\n"


def write_json(modules: Modules, noise_level: int) -> str:

    def tree(path: str) -> dict[str, Any]:
        told = modules[path]
        node: dict[str, Any] = {
            "fqn": path,
            "module_type": told.get("module_type", "") if noise_level > 0 else "",
            "parameters": list(told.get("parameters", {}).items()) if noise_level > 0 else [],
            "children": [tree(child) for child in told["children"]],
        }
        for direction in ("forward", "backward"):
            node[f"collectives_{direction}"] = list(told["collectives"].get(direction, {}).items())
            node[f"operations_{direction}"] = [
                {"name": record.op, "input_sharding": record.given, "output_sharding": record.results}
                for record in _operations(told["operations"][direction], noise_level)
            ]
        return node

    return json.dumps(tree("Global"), indent=4)


def _operations(records: list[OpRecord], noise_level: int) -> list[OpRecord]:
    if noise_level < 1:
        return []
    return [record for record in records if noise_level > 2 or record.op.split("::")[-1].split(".")[0] not in TRIVIAL]
