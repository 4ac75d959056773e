"""What rules and scopes refuse."""

from error_cases import case

TITLE = "Rules and scopes"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
d = sw.ones(6, 2, device_mesh=mesh, placements=[Shard(0)])
"""
CASES = [
    case("a rule for an operator that torch does not know", 'sw.register_rule("mylib::op", "ij->i")', ValueError),
    case("a rule for an operator that has one", 'sw.register_rule("aten::mm", "mk,kn->mn")', ValueError),
    case("a rule without an arrow", 'sw.register_rule("aten::_fft_c2c", "ij")', ValueError),
    case("a rule with a digit", 'sw.register_rule("aten::_fft_c2c", "i1->i")', ValueError),
    case("an unknown kind of linearity", 'sw.register_rule("aten::_fft_c2c", "ij->ij", linear="some")', ValueError),
    case(
        "a whole dim that the rule does not have", 'sw.register_rule("aten::_fft_c2c", "ij->ij", whole="z")', ValueError
    ),
    case("more outputs than the operator has", 'sw.register_rule("aten::_fft_c2c", "ij->ij,ij")', ValueError),
    case("a sharding of what is no operator", 'sw.experimental.register_sharding("add")(lambda x: [])', TypeError),
    case(
        "a sharding of an operator that torch composes",
        "sw.experimental.register_sharding(torch.ops.aten.flatten.using_ints)(lambda *x: [])",
        ValueError,
    ),
    case("an unknown exchange", 'sw.lookup_exchange("broadcast")', ValueError),
    case(
        "no placements for a result of local_map",
        "sw.experimental.local_map(lambda x: (x, x), out_placements=[[Shard(0)]], device_mesh=mesh)(d)",
        AssertionError,
    ),
    case(
        "in_placements of another number",
        "sw.experimental.local_map(lambda x: x, out_placements=[Shard(0)], in_placements=([Shard(0)], [Shard(0)]), device_mesh=mesh)(d)",
        AssertionError,
    ),
    case(
        "an argument that is placed otherwise",
        "sw.experimental.local_map(lambda x: x, out_placements=[Shard(0)], in_placements=([Replicate()],), device_mesh=mesh)(d)",
        ValueError,
    ),
    case(
        "placements for what is no tensor",
        "sw.experimental.local_map(lambda x: x, out_placements=[Shard(0)], in_placements=([Replicate()],), device_mesh=mesh)(3)",
        AssertionError,
    ),
    case(
        "no placements for a tensor",
        "sw.experimental.local_map(lambda x: x, out_placements=[Shard(0)], in_placements=(None,), device_mesh=mesh)(d)",
        AssertionError,
    ),
    case(
        "a function on pieces that gives a DTensor",
        "sw.experimental.local_map(lambda x: d, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)(d)",
        AssertionError,
    ),
]
