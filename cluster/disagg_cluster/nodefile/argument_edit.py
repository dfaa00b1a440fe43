"""Changes a worker's arguments in the text of a node file, and nothing else of it.

Comments, order and layout stay. The changed text is read again and compared with the intended
result: a text that cannot be so changed (an anchor that several workers share) is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import yaml

from disagg_cluster.nodefile.yaml_positions import read_yaml
from disagg_exporter.errors import DisaggError


class ArgumentEditError(DisaggError):
    """An argument that cannot be changed in this text; says what to write by hand."""

    exit_code = 2


def with_arguments(text: str, worker: str, wanted: Mapping[str, str]) -> str:
    """Return the text with these arguments of a worker.

    An option that is already given gets the new value at its last occurrence, which takes effect;
    others are appended to `args`.

    Args:
        text: A node file.
        worker: The worker's name.
        wanted: Values by option, such as `--max-num-seqs`.

    Raises:
        ArgumentEditError: There is no such worker, or it cannot be done without changing more.
    """
    for option, value in wanted.items():
        node = _worker(text, worker)
        if node is None:
            raise ArgumentEditError(f"the node file has no worker {worker!r}")
        if _has_by_role(node, option):
            raise ArgumentEditError(
                f"{worker}: its `role_args` say {option}, and come after `args`; write "
                f"{option} {value} there yourself"
            )
        changed = _with_option(text, node, option, value)
        if _read(changed) != _expected(text, worker, option, value):
            raise ArgumentEditError(
                f"{worker}: its `args` are not written where only they would change; write "
                f"{option} {value} there yourself"
            )
        text = changed
    return text


def _worker(text: str, name: str) -> yaml.MappingNode | None:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ArgumentEditError(f"the node file is not valid YAML: {error}") from None
    workers = _value(root, "workers")
    if not isinstance(workers, yaml.SequenceNode):
        return None
    for each in workers.value:
        named = _value(each, "name")
        if isinstance(named, yaml.ScalarNode) and named.value == name:
            assert isinstance(each, yaml.MappingNode)
            return each
    return None


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _has_by_role(worker: yaml.MappingNode, option: str) -> bool:
    """Whether an option is in a role's arguments, which override `args`."""
    by_role = _value(worker, "role_args")
    if not isinstance(by_role, yaml.MappingNode):
        return False
    lists = [args for _, args in by_role.value if isinstance(args, yaml.SequenceNode)]
    words = [word.value for args in lists for word in args.value]
    return option in (
        str(word).partition("=")[0].replace("_", "-") for word in words if isinstance(word, str)
    )


def _with_option(text: str, worker: yaml.MappingNode, option: str, value: str) -> str:
    args = _value(worker, "args")
    quoted = json.dumps(value)
    if not isinstance(args, yaml.SequenceNode):
        return _with_args(text, worker, f"args: [{option}, {quoted}]")
    words = [each for each in args.value if isinstance(each, yaml.ScalarNode)]
    for place in reversed(range(len(words))):
        given, equals, _ = words[place].value.partition("=")
        if given.replace("_", "-") != option:
            continue
        if equals:
            return _replaced(text, words[place], json.dumps(f"{given}={value}"))
        if place + 1 < len(words):
            return _replaced(text, words[place + 1], quoted)
    return _appended(text, args, option, quoted)


def _replaced(text: str, node: yaml.Node, new: str) -> str:
    return text[: node.start_mark.index] + new + text[node.end_mark.index :]


def _with_args(text: str, worker: yaml.MappingNode, args: str) -> str:
    """Insert `args` after the worker's name, in the style of the rest."""
    key, value = next(pair for pair in worker.value if pair[0].value == "name")
    if worker.flow_style:
        end = value.end_mark.index
        return f"{text[:end]}, {args}{text[end:]}"
    return _line_after(text, value.end_mark.index, " " * key.start_mark.column + args)


def _appended(text: str, args: yaml.SequenceNode, option: str, quoted: str) -> str:
    if args.flow_style:
        if not args.value:
            end = args.end_mark.index - 1
            return f"{text[:end]}{option}, {quoted}{text[end:]}"
        end = args.value[-1].end_mark.index
        return f"{text[:end]}, {option}, {quoted}{text[end:]}"
    indent = " " * args.start_mark.column
    # A block scalar ends where the next line begins.
    end = args.value[-1].end_mark.index
    lines = _newline(text).join((f"{indent}- {option}", f"{indent}- {quoted}"))
    return _line_after(text, end, lines)


def _line_after(text: str, index: int, line: str) -> str:
    end = text.find("\n", index)
    newline = _newline(text)
    if end < 0:
        return f"{text}{newline}{line}{newline}"
    return f"{text[: end + 1]}{line}{newline}{text[end + 1 :]}"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _read(text: str) -> object:
    """Return the document, and whether it has problems as YAML."""
    document = read_yaml(text)
    return (document.value, bool(document.findings))


def _expected(text: str, worker: str, option: str, value: str) -> object:
    """Return what reading the changed text must yield."""
    document = read_yaml(text).value
    assert isinstance(document, dict)
    workers = [
        {**each, "args": _changed(each.get("args") or [], option, value)}
        if isinstance(each, dict) and each.get("name") == worker
        else each
        for each in document["workers"]
    ]
    return ({**document, "workers": workers}, False)


def _changed(args: list[object], option: str, value: str) -> list[object]:
    words = [str(each) for each in args]
    for place in reversed(range(len(words))):
        given, equals, _ = words[place].partition("=")
        if given.replace("_", "-") != option:
            continue
        if equals:
            return [*args[:place], f"{given}={value}", *args[place + 1 :]]
        if place + 1 < len(words):
            return [*args[: place + 1], value, *args[place + 2 :]]
    return [*args, option, value]
