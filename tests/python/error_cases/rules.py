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
    case(
        "a whole dim of an elementwise rule", 'sw.register_rule("aten::_fft_c2c", "pointwise", whole="i")', ValueError
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
        "results of local_map of lengths that two mesh dims cannot share out",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        uneven = sw.distribute_tensor(torch.arange(3.0), grid, [Shard(0), Shard(0)])
        sw.experimental.local_map(lambda x: x[1:], out_placements=[Shard(0), Shard(0)])(uneven)
        """,
        ValueError,
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
    case(
        "a rule that gives no notation",
        "torch.ops.mylib.halve(d)",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::halve", mutates_args=())
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        halve.register_fake(torch.empty_like)
        sw.register_rule("mylib::halve", lambda shapes: 7)
        """,
    ),
    case(
        "a whole dim that a function's notation does not have",
        "torch.ops.mylib.third(d)",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::third", mutates_args=())
        def third(x: torch.Tensor) -> torch.Tensor:
            return x / 3

        third.register_fake(torch.empty_like)
        sw.register_rule("mylib::third", lambda shapes: "ij->ij", whole="z")
        """,
    ),
    case(
        "a rule for tensors of other dims",
        "torch.ops.mylib.fourth(d[0])",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::fourth", mutates_args=())
        def fourth(x: torch.Tensor) -> torch.Tensor:
            return x / 4

        fourth.register_fake(torch.empty_like)
        sw.register_rule("mylib::fourth", "ij->ij")
        """,
    ),
    case(
        "a rule for more tensors",
        "torch.ops.mylib.fifth(d)",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::fifth", mutates_args=())
        def fifth(x: torch.Tensor) -> torch.Tensor:
            return x / 5

        fifth.register_fake(torch.empty_like)
        sw.register_rule("mylib::fifth", "ij,jk->ik")
        """,
    ),
    case(
        "a sharding along a dim that the tensor does not have",
        "torch.ops.mylib.sixth(d)",
        IndexError,
        once="""
        @torch.library.custom_op("mylib::sixth", mutates_args=())
        def sixth(x: torch.Tensor) -> torch.Tensor:
            return x / 6

        sixth.register_fake(torch.empty_like)
        sw.experimental.register_sharding(torch.ops.mylib.sixth.default)(lambda x: [([Shard(2)], [Shard(2)])])
        """,
    ),
    case(
        "a sharding for more tensors",
        "torch.ops.mylib.seventh(d)",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::seventh", mutates_args=())
        def seventh(x: torch.Tensor) -> torch.Tensor:
            return x / 7

        seventh.register_fake(torch.empty_like)
        sw.experimental.register_sharding(torch.ops.mylib.seventh.default)(lambda x: [([Shard(0)], [Shard(0), Shard(0)])])
        """,
    ),
    case(
        "a sharding that is no list of pairs",
        "torch.ops.mylib.eighth(d)",
        ValueError,
        once="""
        @torch.library.custom_op("mylib::eighth", mutates_args=())
        def eighth(x: torch.Tensor) -> torch.Tensor:
            return x / 8

        eighth.register_fake(torch.empty_like)
        sw.experimental.register_sharding(torch.ops.mylib.eighth.default)(lambda x: Shard(0))
        """,
    ),
    case(
        "the end of a scope that has not begun",
        'sw.communication_policy("error").__exit__(None, None, None)',
        ValueError,
    ),
    case(
        "the end of accumulation that has not begun", "sw.accumulate_gradients().__exit__(None, None, None)", ValueError
    ),
    case(
        "placements for a result that is no tensor",
        "sw.experimental.local_map(lambda x: 3, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)(d)",
        AssertionError,
    ),
    case(
        "no placements for a gradient",
        "sw.experimental.local_map(lambda x: x, out_placements=[Shard(0)], in_placements=([Shard(0)],), in_grad_placements=(None,), device_mesh=mesh)(d)",
        AssertionError,
    ),
    case(
        "DTensors of torch beside ours in local_map",
        """
        from torch.distributed.tensor.experimental import local_map
        local_map(lambda x, y: x, out_placements=[Shard(0)])(d, sw.to_torch(d))
        """,
        TypeError,
        of_processes=True,
    ),
    case(
        "a rule for an operator of one's own that has one",
        'sw.register_rule("mylib::halve", "ij->ij")',
        ValueError,
        once="""
        @torch.library.custom_op("mylib::halve", mutates_args=())
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        halve.register_fake(torch.empty_like)
        sw.register_rule("mylib::halve", lambda shapes: 7)
        """,
    ),
    case(
        "a sharding against the order of mesh dims",
        "torch.ops.mylib.ninth(d)",
        ValueError,
        once="""
        from shardwise.placement_types import _StridedShard

        @torch.library.custom_op("mylib::ninth", mutates_args=())
        def ninth(x: torch.Tensor) -> torch.Tensor:
            return x / 9

        ninth.register_fake(torch.empty_like)
        against = [_StridedShard(0, split_factor=2)]
        sw.experimental.register_sharding(torch.ops.mylib.ninth.default)(lambda x: [(against, against)])
        """,
    ),
    case(
        "an operator that gives what its fake does not",
        "torch.ops.mylib.tenth(d)",
        NotImplementedError,
        once="""
        @torch.library.custom_op("mylib::tenth", mutates_args=())
        def tenth(x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

        tenth.register_fake(torch.empty_like)
        sw.register_rule("mylib::tenth", "ij->ij")
        """,
    ),
]
