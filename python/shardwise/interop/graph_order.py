"""The order of a graph that inductor compiles: a move starts as soon as its operand is there, and the graph waits for it as late as possible."""

from itertools import takewhile
from typing import Any, cast

import torch
from torch._higher_order_ops.effects import with_effects
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node


def post_grad_passes(original: Any, module: GraphModule, *args: Any, **options: Any) -> Any:
    """Inductor's last passes over a graph, and then ours."""
    result = original(module, *args, **options)
    if module.graph.find_nodes(op="call_function", target=torch.ops.shardwise.finish_move.default):
        put_in_order(module.graph)
        module.graph.lint()
        module.recompile()
    return result


def put_in_order(graph: Graph) -> None:
    """Changes the order of the nodes before the first that writes to a tensor. Moves and other steps keep their order, which is the same on all ranks.

    Before each move come the nodes that it needs. If it needs the result of the move before it, then all nodes that stood before it and do not need that
    result come first.
    """
    body = [node for node in graph.nodes if node.op != "placeholder"]
    nodes = list(takewhile(lambda node: not _writes(node), body))
    # By node: the nodes that come before it, and the number of the last move whose result it needs, counted from 1, or 0.
    inputs: dict[Node, list[Node]] = {}
    results: dict[Node, int] = {}
    numbers: dict[Node, int] = {}  # of the nodes that start moves
    draws: list[Node] = []  # the last draw of random numbers
    for node in nodes:
        inputs[node] = [each for each in node.all_input_nodes if each in inputs]
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            inputs[node], draws = inputs[node] + draws, [node]
        results[node] = max((results[each] for each in inputs[node]), default=0)
        if node.target is with_effects and node.args[1] is torch.ops.shardwise.start_move.default:
            numbers[node] = len(numbers) + 1
        elif node.target is torch.ops.shardwise.finish_move.default:
            starts = cast(Node, node.args[0]).all_input_nodes  # none if the move started in another graph
            results[node] = max(results[node], *(numbers.get(start, 0) for start in starts), 0)
    order: dict[Node, None] = {}
    for start, number in numbers.items():
        before = nodes[: nodes.index(start) + 1]
        needed = _needed(start, inputs, order)
        if number > 1 and any(results[node] == number - 1 for node in needed):
            order |= dict.fromkeys(node for node in before if results[node] < number - 1)
        order |= dict.fromkeys(node for node in before if node in needed)
    order |= dict.fromkeys(node for node in nodes if results[node] < len(numbers))
    order |= dict.fromkeys(nodes)
    for node in order:
        body[len(nodes)].prepend(node)


def _writes(node: Node) -> bool:
    """True if `node` may write to a tensor, and for the output."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return node.op not in ("call_function", "get_attr") or (
        isinstance(node.target, HigherOrderOperator) and node.target is not with_effects
    )


def _needed(node: Node, inputs: dict[Node, list[Node]], done: dict[Node, None]) -> set[Node]:
    """`node`, and all that it needs, but for those that are done."""
    needed: set[Node] = set()
    left = [node]
    while left:
        if (each := left.pop()) not in needed and each not in done:
            needed.add(each)
            left += inputs[each]
    return needed
