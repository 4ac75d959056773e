"""How the commands write their help."""

from rich_argparse import RawDescriptionRichHelpFormatter

PLACEMENTS = """Placements, one per mesh dim: S0 (sharded along tensor dim 0), S0[1,3,1,3] (in these sizes),
R (replicated), P, Pavg, Pmax, Pmin, Pproduct (partial); or as Python spells them:
RaggedShard((0,1),(2,3,0,5)) (ranges of the flattened dims 0 and 1 in these proportions)."""


class HelpFormatter(RawDescriptionRichHelpFormatter):
    """In colour on terminals; descriptions and examples stand as they are written, brackets included."""

    group_name_formatter = str
    text_markup = False
    help_markup = False
