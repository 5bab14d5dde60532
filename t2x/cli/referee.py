"""The command `t2x referee`."""

from t2x.statistics.command import HELP, TAKES_BINDINGS, arguments, run

__all__ = ['HELP', 'TAKES_BINDINGS', 'arguments', 'run']
