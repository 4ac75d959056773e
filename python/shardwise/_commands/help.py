"""How the commands write their help."""

from rich_argparse import RawDescriptionRichHelpFormatter

__all__ = ["HelpFormatter"]


class HelpFormatter(RawDescriptionRichHelpFormatter):
    """In colour on terminals; descriptions and examples stand as they are written, brackets included."""

    group_name_formatter = str
    text_markup = False
    help_markup = False
